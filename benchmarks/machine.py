"""The machine and the installed versions, without which no figure means anything."""

from __future__ import annotations

import datetime as dt
import os
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

__all__ = ["described", "flush_time", "library_versions", "memory_folder", "today"]


def today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def described() -> dict[str, str]:
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "system": platform.system(),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "load when the run began": f"{os.getloadavg()[0]:.2f}",
    }


def library_versions(*names: str) -> dict[str, str]:
    return {name: version(name) for name in names}


def memory_folder() -> str | None:
    """A folder in memory; None, the default temporary folder, if there is none."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def flush_time() -> str:
    """How long it takes to get a page onto the disk of the temporary folder, as a median in words."""
    times = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(50):
            file.write(b"\0" * 4096)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return f"{median(times) * 1000:.2f} ms"
