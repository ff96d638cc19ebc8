"""Settings of crestgate.yaml and the environment, validated as a whole.

store: redis://localhost:6379/0           # or a list of URLs
migrate: {from: mysql://…, to: redis://…, percent: 25}                     # and stores: see stores.py
rules_store: sqlite:///rules.db           # where rules are written to
on_store_error: open                      # or closed, or local
fallback_instances: 1                     # that share out limits under local
denial_cache: true                        # answer denials that are known to last without the store
refresh_seconds: 1                        # poll interval for changed rules
mode: service                             # or embedded
server: {http: "127.0.0.1:8080", grpc: "127.0.0.1:8081", workers: 4}       # and more: see server.py
headers: {reset: epoch}                   # and metrics, logs, tracing, traffic, pressure: see observability.py
deprecated: […]                           # deprecated endpoints: see deprecations.py
envoy: {config: envoy.d}                  # limits on Envoy's descriptors: see envoy.py
include: [limits.yaml, conf.d]            # files and folders, relative to this file
rules: […]                                # and the other sections: see rules/storage/file_sections.py
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from crestgate.config.default_folder import default_xds_cache
from crestgate.config.deprecations import Deprecation, read_deprecated
from crestgate.config.environment import read_environment
from crestgate.config.envoy import Envoy, read_envoy
from crestgate.config.observability import (
    Logs,
    Metrics,
    Tracing,
    Traffic,
    read_headers,
    read_logs,
    read_metrics,
    read_tracing,
    read_traffic,
    read_webhook,
)
from crestgate.config.server import Address, ServerLimits, ServerSettings, Tls, read_server
from crestgate.config.stores import read_stores, unknown_stores
from crestgate.config.urls import read_rules_store
from crestgate.core.failure_policies import DEFAULT_FAILURE_POLICY, FAILURE_POLICIES, OnStoreError
from crestgate.envoy.files import DescriptorFiles
from crestgate.envoy.reloader import Descriptors
from crestgate.envoy.xds.snapshot import read_snapshot
from crestgate.errors import Problem, ValidationError
from crestgate.http.header_options import HeaderStyle
from crestgate.loader.fields import Fields, Problems
from crestgate.rules.port import Record
from crestgate.rules.storage.files import FileRepository
from crestgate.rules.storage.rule_files import RuleFiles, in_order, read_rule_files
from crestgate.stores.spec import StoreSpec

__all__ = [
    "Address",
    "Deprecation",
    "Envoy",
    "HeaderStyle",
    "Logs",
    "Metrics",
    "Mode",
    "ServerLimits",
    "ServerSettings",
    "Settings",
    "Tls",
    "Tracing",
    "Traffic",
    "load_settings",
]

Mode = Literal["service", "embedded"]
MODES: tuple[Mode, ...] = ("service", "embedded")
DEFAULT_STORE = "memory://"
MAX_FALLBACK_INSTANCES = 1000
MIN_REFRESH, MAX_REFRESH = 0.05, 3600
XDS_REFRESH = 0.5
"""Seconds between two looks of a worker at the configuration that another one has received."""
_log = logging.getLogger("crestgate.envoy")


@dataclass(frozen=True, slots=True)
class Settings:
    """Validated settings. Created by `load_settings`."""

    store: StoreSpec = field(default=DEFAULT_STORE, repr=False)
    """Not in the repr, like `rules_store`: it may contain a password. With `migrate` and `stores`."""
    rules_store: str | None = field(default=None, repr=False)
    on_store_error: OnStoreError = DEFAULT_FAILURE_POLICY
    refresh_seconds: float = 1.0
    mode: Mode = "service"
    server: ServerSettings = field(default_factory=ServerSettings)
    headers: HeaderStyle = field(default_factory=HeaderStyle)
    metrics: Metrics = field(default_factory=Metrics)
    logs: Logs = field(default_factory=Logs)
    tracing: Tracing = field(default_factory=Tracing)
    webhook: str | None = field(default=None, repr=False)
    """The URL that pressure changes are posted to (`pressure.webhook`), a secret."""
    deprecated: tuple[Deprecation, ...] = ()
    envoy: Envoy = field(default_factory=Envoy)
    files: RuleFiles = field(default_factory=lambda: RuleFiles((), ()), repr=False, compare=False)
    """The rule files as they were read."""
    store_is_set: bool = field(default=False, repr=False, compare=False)
    """Whether the file or the environment sets `store`, or `migrate`, which has its own."""
    descriptor_files: DescriptorFiles | None = field(default=None, repr=False, compare=False)
    """The descriptor files as they were read."""
    fallback_instances: int = 1
    """How many of these share out each limit under the policy `local`; the workers of a service count as one."""
    traffic: Traffic = field(default_factory=Traffic)
    denial_cache: bool = True
    """Whether a denial that is known to last is answered without the store."""

    @property
    def records(self) -> tuple[Record, ...]:
        """The rules, plans and so on of the file, its includes and the environment."""
        return tuple(self.files.records)

    @property
    def include(self) -> tuple[str, ...]:
        """The included files and folders, relative to the working directory."""
        return tuple(self.files.included)

    def rule_files(self) -> FileRepository:
        """The rules as a repository, which reloads the files when they change; nothing is read again now."""
        return FileRepository(self.files.paths, self.files.variables, self.files)

    @property
    def descriptors_summary(self) -> str | None:
        """For people: `envoy.d: 2 limits in mail, 1 limit in shop`."""
        if self.envoy.xds is not None:
            return f"limits from the control plane at {self.envoy.xds.server}"
        if self.envoy.config is None or self.descriptor_files is None:
            return None
        counts = self.descriptor_files.domains.counts
        domains = [f"{count} limit{'' if count == 1 else 's'} in {domain}" for domain, count in counts.items()]
        return f"{self.envoy.config}: {', '.join(domains)}"

    def descriptors(self) -> Descriptors | None:
        """The limits on Envoy's descriptors, reloaded when their files change; None without any. The caller closes
        them."""
        if self.envoy.xds is not None:
            path = self.xds_cache()
            return Descriptors(path, XDS_REFRESH, _last_snapshot(path), read_snapshot)
        if self.envoy.config is None:
            return None
        return Descriptors(self.envoy.config, self.refresh_seconds, self.descriptor_files)

    def xds_cache(self) -> str:
        """The path of the file with the last configuration of the control plane."""
        assert self.envoy.xds is not None
        return self.envoy.xds.cache or default_xds_cache()


def _last_snapshot(path: str) -> DescriptorFiles:
    """What was in force last. An unreadable file is no reason not to start: the control plane sends it again."""
    files = read_snapshot(path)
    if not files.problems:
        return files
    _log.error("cannot use the last configuration of envoy.xds, waiting for the next: %s", files.problems[0])
    return DescriptorFiles(path, states=files.states)


def load_settings(path: str | None, environ: Mapping[str, str]) -> Settings:
    """The settings of a file, if any, and the environment, which overrides it. ValidationError has all problems of the
    file, of those it includes and of the environment."""
    variables, problems = read_environment(environ)
    if path is not None and os.path.isdir(path):
        problems.append(Problem("", "is a folder: name the file with the settings", path))
        path = None
    files, main = read_rule_files([] if path is None else [path], variables)
    settings_problems = Problems()
    # Unknown fields are among the problems of the files already.
    data = main.data if isinstance(main.data, Mapping) else {}
    fields = Fields(data, "", settings_problems, data)
    envoy, descriptor_files = read_envoy(fields, "envoy", main)
    settings = Settings(
        read_stores(fields, DEFAULT_STORE),
        read_rules_store(fields, "rules_store"),
        fields.choice("on_store_error", FAILURE_POLICIES, DEFAULT_FAILURE_POLICY),
        float(fields.seconds("refresh_seconds", 1.0, minimum=MIN_REFRESH, maximum=MAX_REFRESH)),
        fields.choice("mode", MODES, "service"),
        read_server(fields, "server"),
        read_headers(fields, "headers"),
        read_metrics(fields, "metrics"),
        read_logs(fields, "logs"),
        read_tracing(fields, "tracing"),
        read_webhook(fields, "pressure"),
        read_deprecated(fields, "deprecated"),
        envoy,
        files,
        fields.has("store") or fields.has("migrate"),
        descriptor_files,
        fields.integer("fallback_instances", 1, minimum=1, maximum=MAX_FALLBACK_INSTANCES),
        read_traffic(fields, "traffic"),
        fields.boolean("denial_cache", True),
    )
    problems += unknown_stores(files.stores_used, fields)
    problems = in_order([*files.problems, *map(main.locate, settings_problems.entries), *problems], files)
    problems += [] if descriptor_files is None else descriptor_files.problems
    if problems:
        raise ValidationError(problems)
    return settings
