"""The last good configuration of a control plane, in a file.

The client writes it, and all workers of the node read it, as they read files of limits: so a node has one stream, a
change is complete or not there, and a restart, with or without a control plane, begins with what was in force.

    {"format": 1, "version": "7", "resources": [{"name": "gw", "domain": "gw", "descriptors": […]}]}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

from crestgate.envoy.descriptor_tree import DescriptorNode
from crestgate.envoy.files import DescriptorFiles
from crestgate.envoy.matcher import Domains
from crestgate.envoy.yaml_reader import read_domain
from crestgate.errors import Problem
from crestgate.loader.document import Document, stamp_of
from crestgate.loader.fields import Problems, describe

__all__ = ["read_snapshot", "validate_resources", "write_snapshot"]

FORMAT: Final = 1


def validate_resources(resources: Sequence[Mapping[str, Any]]) -> tuple[Domains, list[Problem]]:
    """The domains of resources, and all problems, each with the name of its resource as its file."""
    roots: dict[str, DescriptorNode] = {}
    names: dict[str, str] = {}
    found: list[Problem] = []
    for index, resource in enumerate(resources):
        name = str(resource.get("name") or f"resources[{index}]")
        data = {field: value for field, value in resource.items() if field != "name"}
        problems = Problems()
        root = read_domain(Document("", data), problems)
        if root is not None and root.label in names:
            other = names[root.label]
            problems.add("domain", f"{describe(root.label)} is the domain of {other} too: send one for each domain")
        elif root is not None:
            names[root.label] = name
            roots[root.label] = root
        found += [problem._replace(file=name, line=None) for problem in problems.entries]
    return (Domains({}) if found else Domains(roots)), found


def write_snapshot(path: str, version: str, resources: Sequence[Mapping[str, Any]]) -> None:
    """Replace the file atomically, and see that it survives a crash. OSError if that fails."""
    content = json.dumps({"format": FORMAT, "version": version, "resources": list(resources)}).encode()
    new = f"{path}.{os.getpid()}.new"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        raise


def read_snapshot(path: str) -> DescriptorFiles:
    """The limits in the file. There are none, and no `digests`, before the first configuration has been received."""
    files = DescriptorFiles(path)
    files.states[path] = stamp_of(path)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return files
    except OSError as error:
        files.problems.append(Problem("", f"cannot be read ({error.strerror})", path))
        return files
    files.digests[path] = sha256(content).digest()
    try:
        data = json.loads(content)
        if data["format"] != FORMAT:
            raise ValueError
        files.domains, problems = validate_resources(data["resources"])
    except (ValueError, KeyError, TypeError, AttributeError):
        files.problems.append(Problem("", "is not a configuration that Crestgate has written: delete it", path))
        return files
    files.problems += [problem._replace(file=path) for problem in problems]
    return files
