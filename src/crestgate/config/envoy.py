"""Settings of Envoy's rate limit service: a file in envoyproxy/ratelimit's format, or a folder of such files.

envoy: {config: envoy.d, negative_hits: false, x_ratelimit: false, charge_beyond_limit: true, max_debt: 100}
envoy: {xds: {server: "control-plane:18001"}}                              # instead of config: see xds.py

The limits are read with the settings, so that all errors are reported together. As with `include`, a relative path in a
file is relative to that file, and one in a variable to the working directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from crestgate.config.section import field_names, section
from crestgate.config.xds import read_xds
from crestgate.envoy.files import DescriptorFiles, path_state, read_descriptor_files
from crestgate.envoy.xds.settings import Xds
from crestgate.loader.document import Document
from crestgate.loader.fields import Fields, describe

__all__ = ["Envoy", "read_envoy"]


@dataclass(frozen=True, slots=True)
class Envoy:
    """The section `envoy`."""

    config: str | None = None
    """The path of the file or folder, relative to the working directory."""
    negative_hits: bool = False
    """Whether scope `check` may also give quota back (`is_negative_hits`). If not, that requires scope `write`."""
    x_ratelimit: bool = False
    """Whether responses carry X-RateLimit-…: Envoy's filter adds its own with `enable_x_ratelimit_headers`."""
    charge_beyond_limit: bool | None = None
    """Whether hits that do not fit are charged as a debt, for limits and domains that do not say so. None: those that a
    descriptor has of its own, which is how Envoy reports hits after the response."""
    max_debt: int = 100
    """The largest such debt, in percent of the limit."""
    xds: Xds | None = None
    """The control plane that has the limits, instead of files."""


def read_envoy(fields: Fields, name: str, main: Document) -> tuple[Envoy, DescriptorFiles | None]:
    """The section, and the contents of the files, with their problems."""
    if isinstance(fields.values.get(name), str):
        fields.report(name, "must be a mapping: write {config: …} around the path")
        return Envoy(), None
    inner = section(fields, name, field_names(Envoy))
    negative_hits = inner.boolean("negative_hits", False)
    config: str | None = inner.text("config")
    envoy = Envoy(
        None,
        negative_hits,
        inner.boolean("x_ratelimit", False),
        inner.boolean("charge_beyond_limit", False) if inner.has("charge_beyond_limit") else None,
        inner.integer("max_debt", 100, minimum=1, maximum=100),
        read_xds(inner, "xds"),
    )
    if config is not None and inner.has("xds"):
        inner.report("xds", "cannot be combined with 'config': limits are in files, or at a control plane")
    if config is None:
        return envoy, None
    folder = "" if inner.path("config") in main.variables else os.path.dirname(main.file)
    path = os.path.join(folder, config)
    state = path_state(path)
    if state is None:
        inner.report("config", f"there is no file or folder {describe(path)}: create it, or correct the path")
    elif state == ():
        inner.report("config", f"there is no *.yaml or *.yml file in {describe(path)}: put one there for each domain")
    else:
        return replace(envoy, config=path), read_descriptor_files(path)
    return replace(envoy, config=path), None
