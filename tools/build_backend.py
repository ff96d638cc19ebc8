"""setuptools' build backend, which asks for mypy only where it will compile.

Without a C compiler the plain wheel is built, and setuptools alone does it: such a build must neither fail nor wait for
a compiler of types that it will not use, whose own parts in C have no wheels for every platform. setup.py decides by
the same function.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import build_editable, build_sdist, build_wheel, prepare_metadata_for_build_wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
    "reason_for_pure_build",
]

COMPILER = ["mypy>=1.18"]
"""Brings mypyc. As in the group `test`."""

Settings = Mapping[str, str | list[str] | None] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    found = build_meta.get_requires_for_build_wheel(config_settings)
    return [*found, *([] if reason_for_pure_build() else COMPILER)]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return get_requires_for_build_wheel(config_settings)


def reason_for_pure_build() -> str:
    """Why nothing is compiled here; empty where it is."""
    if os.environ.get("CRESTGATE_PURE", "") not in ("", "0"):
        return "CRESTGATE_PURE asks for it"
    if sys.implementation.name != "cpython":
        return f"mypyc compiles for CPython, and this is {sys.implementation.name}"
    if sys.platform == "win32":
        return "on Windows the hot modules are not compiled"
    return _compiler_fault()


def _compiler_fault() -> str:
    """Why a module that includes Python.h does not compile here: better to find out before than in the middle."""
    from setuptools._distutils.ccompiler import new_compiler
    from setuptools._distutils.sysconfig import customize_compiler

    folder = Path(tempfile.mkdtemp())
    try:
        source = folder / "probe.c"
        source.write_text("#include <Python.h>\nint main(void) { return 0; }\n")
        compiler = new_compiler()
        customize_compiler(compiler)
        compiler.add_include_dir(sysconfig.get_paths()["include"])
        compiler.compile([str(source)], output_dir=str(folder))
    except Exception as error:  # noqa: BLE001 - whatever it is, the answer is no
        return f"no working C compiler ({type(error).__name__}: {error})"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ""
