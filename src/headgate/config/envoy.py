"""Where the limits on Envoy's descriptors are: a file as envoyproxy/ratelimit reads it, or a folder of such files.

envoy: {config: envoy.d, negative_hits: false, x_ratelimit: false}

The limits are read with the settings, so that a start does not fail on them. As with `include`, a relative path in a
file is seen from that file, and one in a variable from the folder in which the program was started.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from headgate.config.section import names_of, section
from headgate.envoy.files import DescriptorFiles, look, read_descriptor_files
from headgate.reading.document import Document
from headgate.reading.fields import Fields, kind_of

__all__ = ["Envoy", "read_envoy"]


@dataclass(frozen=True, slots=True)
class Envoy:
    """What Envoy is answered by, if anything is."""

    config: str | None = None
    """The path of the file or folder, as seen from here."""
    negative_hits: bool = False
    """Whether whoever may check may also give back (`is_negative_hits`). Else it needs scope `write`."""
    x_ratelimit: bool = False
    """Whether replies carry X-RateLimit-…: Envoy's filter adds its own where `enable_x_ratelimit_headers` is on."""


def read_envoy(fields: Fields, name: str, main: Document) -> tuple[Envoy, DescriptorFiles | None]:
    """The section, and what the files say: mistakes in them are in `problems` there."""
    if isinstance(fields.values.get(name), str):
        fields.wrong(name, "must be a mapping: write {config: …} around the path")
        return Envoy(), None
    inner = section(fields, name, names_of(Envoy))
    negative_hits = inner.yes("negative_hits", False)
    written: str | None = inner.text("config")
    x_ratelimit = inner.yes("x_ratelimit", False)
    if written is None:
        return Envoy(None, negative_hits, x_ratelimit), None
    folder = "" if inner.way("config") in main.variables else os.path.dirname(main.file)
    path = os.path.join(folder, written)
    seen = look(path)
    if seen is None:
        inner.wrong("config", f"there is no file or folder {kind_of(path)}: make it, or mend the path")
    elif seen == ():
        inner.wrong("config", f"there is no *.yaml or *.yml file in {kind_of(path)}: put one there for each domain")
    else:
        return Envoy(path, negative_hits, x_ratelimit), read_descriptor_files(path)
    return Envoy(path, negative_hits, x_ratelimit), None
