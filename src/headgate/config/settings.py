"""The settings: what stands in headgate.yaml and in the environment, checked as a whole.

store: redis://localhost:6379/0           # or a list of URLs
rules_store: sqlite:///rules.db           # where rules are written to
on_store_error: open                      # or closed, or local
refresh_seconds: 1                        # how often changed rules are looked for
mode: service                             # or embedded
server: {http: "127.0.0.1:8080", grpc: "127.0.0.1:8081", workers: 4}       # and more: see server.py
headers: {reset: epoch}                   # and metrics, logs, tracing, pressure: see observing.py
deprecated: […]                           # endpoints that are going to go: see deprecated.py
envoy: {config: envoy.d}                  # limits on Envoy's descriptors: see envoy.py
include: [limits.yaml, conf.d]            # files and folders, as seen from this file
rules: […]                                # and the other sections: see rules/sections.py
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headgate.config.deprecated import Deprecation, read_deprecated
from headgate.config.environment import read_environment
from headgate.config.envoy import Envoy, read_envoy
from headgate.config.observing import (
    Logs,
    Metrics,
    Tracing,
    read_headers,
    read_logs,
    read_metrics,
    read_tracing,
    read_webhook,
)
from headgate.config.server import Address, Ceilings, Server, Tls, read_server
from headgate.config.urls import read_rules_store, read_store
from headgate.engine.failure import POLICIES, OnStoreError
from headgate.envoy.files import DescriptorFiles
from headgate.envoy.following import Descriptors
from headgate.errors import Invalid, Problem
from headgate.http.style import HeaderStyle
from headgate.reading.fields import Fields, Problems
from headgate.rules.repositories.files import FileRepository
from headgate.rules.repositories.port import Record
from headgate.rules.rule_files import RuleFiles, in_order, read_rule_files

__all__ = [
    "Address",
    "Ceilings",
    "Deprecation",
    "Envoy",
    "HeaderStyle",
    "Logs",
    "Metrics",
    "Mode",
    "Server",
    "Settings",
    "Tls",
    "Tracing",
    "load_settings",
]

Mode = Literal["service", "embedded"]
MODES: tuple[Mode, ...] = ("service", "embedded")
DEFAULT_STORE = "memory://"
LEAST_REFRESH, MOST_REFRESH = 0.05, 3600
"""Seconds: not so often that a process does little else, nor so seldom that nobody would see a change."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator has written. Made by `load_settings`, which checks it."""

    store: str | tuple[str, ...] = field(default=DEFAULT_STORE, repr=False)
    """Not shown, nor is `rules_store`: there may be a password in it."""
    rules_store: str | None = field(default=None, repr=False)
    on_store_error: OnStoreError = "open"
    refresh_seconds: float = 1.0
    mode: Mode = "service"
    server: Server = field(default_factory=Server)
    headers: HeaderStyle = field(default_factory=HeaderStyle)
    metrics: Metrics = field(default_factory=Metrics)
    logs: Logs = field(default_factory=Logs)
    tracing: Tracing = field(default_factory=Tracing)
    webhook: str | None = field(default=None, repr=False)
    """Where transitions of pressure are sent to: `webhook` under `pressure`. Who knows it may post there."""
    deprecated: tuple[Deprecation, ...] = ()
    envoy: Envoy = field(default_factory=Envoy)
    files: RuleFiles = field(default_factory=lambda: RuleFiles((), ()), repr=False, compare=False)
    """The rules as they were read."""
    names_store: bool = field(default=False, repr=False, compare=False)
    """Whether the file or the environment says what `store` is."""
    descriptor_files: DescriptorFiles | None = field(default=None, repr=False, compare=False)
    """The limits on Envoy's descriptors as they were read."""

    @property
    def records(self) -> tuple[Record, ...]:
        """What the sections of rules say, in the file, its includes and the environment."""
        return tuple(self.files.records)

    @property
    def include(self) -> tuple[str, ...]:
        """The files and folders that are included, as seen from here."""
        return tuple(self.files.included)

    def rule_files(self) -> FileRepository:
        """The rules as a repository, which follows the files from here on; nothing is read twice for it."""
        return FileRepository(self.files.paths, self.files.variables, self.files)

    @property
    def descriptors_told(self) -> str | None:
        """Which limits on Envoy's descriptors there are, in words: `envoy.d: 2 limits in mail, 1 limit in shop`."""
        if self.envoy.config is None or self.descriptor_files is None:
            return None
        counts = self.descriptor_files.domains.counts
        said = [f"{count} limit{'' if count == 1 else 's'} in {domain}" for domain, count in counts.items()]
        return f"{self.envoy.config}: {', '.join(said)}"

    def descriptors(self) -> Descriptors | None:
        """The limits on Envoy's descriptors, which follow their files from here on; None without any. Whoever asks for
        them closes them."""
        if self.envoy.config is None:
            return None
        return Descriptors(self.envoy.config, self.refresh_seconds, self.descriptor_files)


def load_settings(path: str | None, environ: Mapping[str, str]) -> Settings:
    """The settings of a file (None: there is none) and the environment, which comes first. Invalid has all mistakes
    in the file, in those it includes and in the environment."""
    variables, problems = read_environment(environ)
    if path is not None and os.path.isdir(path):
        problems.append(Problem("", "is a folder: name the file with the settings", path))
        path = None
    files, main = read_rule_files([] if path is None else [path], variables)
    noted = Problems()
    # What is unknown has been told; here only the fields that are known are asked for.
    fields = Fields(main.data, "", noted, main.data) if isinstance(main.data, Mapping) else Fields({}, "", noted, ())
    envoy, descriptor_files = read_envoy(fields, "envoy", main)
    settings = Settings(
        read_store(fields, "store", DEFAULT_STORE),
        read_rules_store(fields, "rules_store"),
        fields.choice("on_store_error", POLICIES, "open"),
        float(fields.seconds("refresh_seconds", 1.0, least=LEAST_REFRESH, most=MOST_REFRESH)),
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
        fields.given("store"),
        descriptor_files,
    )
    problems = in_order([*files.problems, *map(main.place, noted.found), *problems], files)
    problems += [] if descriptor_files is None else descriptor_files.problems
    if problems:
        raise Invalid(problems)
    return settings
