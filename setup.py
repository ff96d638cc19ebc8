"""Compiles the hot modules with mypyc when a C compiler is there; the same source runs uncompiled when not.

`HEADGATE_PURE=1` asks for the uncompiled build. `headgate --version` tells which one is installed.
`HEADGATE_OPT_LEVEL` (0 to 3, default 3) is how much the C compiler optimises: 1 takes 40 % less time, for tests,
which compile often and measure nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import setup

HOT = [
    "src/headgate/core/state.py",
    "src/headgate/core/decision.py",
    "src/headgate/core/pressure.py",
    "src/headgate/core/algorithms/algorithm.py",
    "src/headgate/core/algorithms/level.py",
    "src/headgate/core/algorithms/token_bucket.py",
    "src/headgate/core/algorithms/leaky_bucket.py",
    "src/headgate/core/algorithms/gcra.py",
    "src/headgate/core/algorithms/fixed_window.py",
    "src/headgate/core/algorithms/sliding_window_counter.py",
    "src/headgate/core/algorithms/sliding_window_log.py",
    "src/headgate/core/algorithms/registered.py",
    "src/headgate/stores/clock.py",
    "src/headgate/stores/port.py",
    "src/headgate/stores/deciding.py",
    "src/headgate/stores/keeping.py",
    "src/headgate/stores/records.py",
    "src/headgate/stores/table.py",
    "src/headgate/stores/memory.py",
    "src/headgate/stores/mutex.py",
    "src/headgate/stores/shared/thread_locks.py",
    "src/headgate/stores/shared/holders.py",
    "src/headgate/stores/shared/locks.py",
    "src/headgate/stores/shared/journal.py",
    "src/headgate/stores/shared/blocks.py",
    "src/headgate/stores/shared/arena.py",
    "src/headgate/stores/shared/cell.py",
    "src/headgate/stores/shared/damage.py",
    "src/headgate/stores/shared/records.py",
    "src/headgate/stores/shared/once.py",
    "src/headgate/stores/shared/take_many.py",
    "src/headgate/stores/shared/digests.py",
    "src/headgate/stores/shared/store.py",
    "src/headgate/stores/breaker.py",
    "src/headgate/stores/sql/partial_log.py",
    "src/headgate/stores/sql/cell.py",
    "src/headgate/stores/sql/records.py",
    "src/headgate/stores/sql/dialect.py",
    "src/headgate/stores/sql/plan.py",
    "src/headgate/stores/sql/transaction.py",
    "src/headgate/stores/redis/reply.py",
    "src/headgate/stores/redis/talk.py",
    "src/headgate/stores/redis/sentinel.py",
    "src/headgate/stores/redis/cluster.py",
    "src/headgate/stores/redis/wire.py",
    "src/headgate/stores/redis/blocking.py",
    "src/headgate/stores/redis/store.py",
    "src/headgate/engine/coalescer.py",
    "src/headgate/engine/bound.py",
    "src/headgate/rules/path.py",
    "src/headgate/rules/trie.py",
    "src/headgate/rules/entry.py",
    "src/headgate/rules/tables.py",
    "src/headgate/rules/ruleset.py",
    "src/headgate/embedded/asking.py",
    "src/headgate/integrations/visit.py",
    "src/headgate/integrations/keys.py",
    "src/headgate/integrations/passing.py",
    "src/headgate/http/field_values.py",
    "src/headgate/http/headers.py",
    "src/headgate/service/observe/recent.py",
    "src/headgate/service/observe/tally.py",
    "src/headgate/service/asgi.py",
    "src/headgate/service/duplicates.py",
    "src/headgate/service/data/bodies.py",
    "src/headgate/service/data/answers.py",
    "src/headgate/service/data/repeats.py",
    "src/headgate/service/data/tokens.py",
    "src/headgate/service/data/slices.py",
    "src/headgate/service/data/inline.py",
    "src/headgate/service/data/large_batches.py",
    "src/headgate/service/data/operations.py",
    "src/headgate/service/data/plane.py",
    "src/headgate/service/data/authorize.py",
    "src/headgate/service/auth/sites.py",
    "src/headgate/service/dispatch.py",
    "src/headgate/service/request_ids.py",
    "src/headgate/envoy/keys.py",
    "src/headgate/envoy/tree.py",
    "src/headgate/envoy/limits.py",
    "src/headgate/service/rpc/call.py",
    "src/headgate/service/rpc/frames.py",
    "src/headgate/service/rpc/headers.py",
    "src/headgate/service/rpc/memory.py",
    "src/headgate/service/rpc/scheduler.py",
    "src/headgate/service/rpc/stream.py",
    "src/headgate/service/rpc/replies.py",
    "src/headgate/service/rpc/incoming.py",
    "src/headgate/service/rpc/connection.py",
    "src/headgate/service/rpc/entry.py",
    "src/headgate/service/rpc/statuses.py",
    "src/headgate/service/rpc/asked.py",
    "src/headgate/service/rpc/field_counts.py",
    "src/headgate/service/rpc/descriptors.py",
    "src/headgate/service/rpc/envoy.py",
    "src/headgate/service/rpc/limiter.py",
]

LENIENT = ["--ignore-missing-imports", "--no-warn-unused-ignores", "--no-warn-return-any", "--follow-imports=silent"]
"""The drivers of the stores are extras, and need not be there in a build: what is only imported by the hot modules may
then make no sense. `make check` is strict, and has them all."""


def opt_level() -> str:
    """How much the C compiler is to optimise."""
    level = os.environ.get("HEADGATE_OPT_LEVEL", "") or "3"
    if level not in ("0", "1", "2", "3"):
        sys.exit(f"HEADGATE_OPT_LEVEL must be 0, 1, 2 or 3, not {level!r}")
    return level


def can_compile() -> bool:
    """Whether a module that includes Python.h compiles here: better to find out before than in the middle."""
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
        print(f"headgate: no working C compiler ({type(error).__name__}: {error})", file=sys.stderr)
        return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def extensions() -> list[object]:
    if {"egg_info", "dist_info"} & set(sys.argv):
        return []  # only asked for the metadata: nothing to compile yet
    if os.environ.get("HEADGATE_PURE", "") not in ("", "0"):
        print("headgate: pure Python build, as HEADGATE_PURE asks", file=sys.stderr)
        return []
    if not can_compile():
        print("headgate: pure Python build; it is slower and decides the same", file=sys.stderr)
        return []
    from mypyc.build import mypycify

    level = opt_level()
    print(f"headgate: compiling the hot modules with mypyc and -O{level}", file=sys.stderr)
    try:
        return list(mypycify([*LENIENT, *HOT], opt_level=level, strip_asserts=False, multi_file=True))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - mypyc leaves when it finds a mistake
        print(f"headgate: mypyc failed ({error}); pure Python build instead", file=sys.stderr)
        return []


setup(ext_modules=extensions())
