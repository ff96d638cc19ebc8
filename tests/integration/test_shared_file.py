"""The file itself: what survives in it, which files are refused and what the refusal says, who makes it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crestgate import ConfigError, Limiter, StoreError
from crestgate.stores.shared import SharedStore
from crestgate.stores.shared.layout import VERSION
from crestgate.testing import FakeClock
from integration.child_process import TIMEOUT, ChildProcess
from integration.shared_idempotency_programs import take_once

Start = Callable[..., ChildProcess]

LIMIT = "1000/year"
VERSION_AT = 8
CRC_AT = 64
ANCHOR_AT = 256
BOOT_AT = 264
ADVICE = re.compile(r"\b(choose|use|delete|make|create|name|leave|remove|give)\b", re.IGNORECASE)
"""A refusal that only says what is wrong leaves the operator alone with it."""


def at(path: Path) -> str:
    return f"shared://{path}"


def refusal(path: Path, url: str | None = None) -> str:
    """What a limiter says that cannot be had, which names the file and says what to do."""
    with pytest.raises((StoreError, ConfigError)) as caught:
        Limiter(url or at(path))
    message = str(caught.value)
    assert str(path) in message
    assert ADVICE.search(message), f"{message!r} does not say what to do"
    return message


@pytest.fixture
def made(counters: Path) -> Path:
    """A file with one counter, of which three are used."""
    with Limiter(f"{at(counters)}?max_keys=50") as limiter:
        for _ in range(3):
            limiter.check("key", LIMIT)
    return counters


def patch(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def remaining(path: Path, key: str = "key") -> int:
    with Limiter(at(path)) as limiter:
        return limiter.peek(key, LIMIT).remaining


# What survives


def test_counters_survive_a_restart(made: Path, start: Start) -> None:
    assert remaining(made) == 997
    assert start("file_programs.check", url=at(made), limit=LIMIT, times=2, wait=False).finish()["used"] == 5
    assert remaining(made) == 995


@pytest.mark.parametrize("algorithm", ["leaky_bucket", "gcra", "fixed_window", "sliding_window_counter"])
def test_every_algorithm_survives_a_restart(algorithm: str, counters: Path) -> None:
    limit = f"1000/hour using {algorithm}"
    clock = FakeClock(1_700_000_000)
    with Limiter(at(counters), clock=clock) as limiter:
        limiter.check("key", limit, 100)
        before = limiter.peek("key", limit)
    with Limiter(at(counters), clock=clock) as limiter:
        assert limiter.peek("key", limit) == before


def test_log_survives_a_restart(counters: Path) -> None:
    limit = "200/hour using sliding_window_log"
    clock = FakeClock(1_700_000_000)
    for _ in range(4):
        with Limiter(at(counters), clock=clock) as limiter:
            for _ in range(40):
                assert limiter.check("key", limit)
                clock.advance(10)
    clock.advance(3600 - 1600)
    with Limiter(at(counters), clock=clock) as limiter:
        for gone in range(1, 160):
            assert limiter.peek("key", limit).remaining == 40 + gone, "entries go one by one, each after its hour"
            clock.advance(10)


def test_size_never_changes(counters: Path) -> None:
    with Limiter(f"{at(counters)}?max_keys=300") as limiter:
        size = counters.stat().st_size
        for i in range(2000):
            limiter.check(f"key:{i}", LIMIT if i % 2 else "5/year using sliding_window_log")
        assert counters.stat().st_size == size
    assert counters.stat().st_size == size
    Limiter(at(counters)).close()
    assert counters.stat().st_size == size


def test_prefixes_keep_counters_apart(made: Path) -> None:
    with Limiter(f"{at(made)}?prefix=other") as limiter:
        assert limiter.check("key", LIMIT).remaining == 999
    assert remaining(made) == 997


def test_reboot_of_the_machine(made: Path) -> None:
    """Another boot id: the monotonic clock has begun anew, so the file gets a new anchor; the counters stay."""
    anchor, boot = struct.unpack("@q16s", made.read_bytes()[ANCHOR_AT : ANCHOR_AT + 24])
    patch(made, ANCHOR_AT, struct.pack("@q16s", 12_345, bytes(16)))
    with Limiter(at(made)) as limiter:
        assert abs(limiter.store.clock.ticks() / 1_000_000 - time.time()) < 60
        assert limiter.check("key", LIMIT).remaining == 996
    new_anchor, new_boot = struct.unpack("@q16s", made.read_bytes()[ANCHOR_AT : ANCHOR_AT + 24])
    assert abs(new_anchor - anchor) < 60_000_000
    assert new_boot == boot


def test_reboot_with_an_earlier_wall_clock_revives_nothing(counters: Path) -> None:
    """What was as good as new by the latest use before the restart is forgotten; what was in use stays so."""
    clock = FakeClock(int(time.time()) + 3 * 3600)
    with Limiter(f"{at(counters)}?max_keys=50", clock=clock) as limiter:
        limiter.check("drained", "1/hour using token_bucket")
        clock.advance(3600)
        limiter.check("used", "1/day using token_bucket")
    patch(counters, BOOT_AT, bytes(16))
    with Limiter(at(counters)) as limiter:
        assert limiter.check("drained", "1/hour using token_bucket").allowed
        assert not limiter.check("used", "1/day using token_bucket").allowed


def test_all_processes_share_one_clock(made: Path) -> None:
    """Whoever opens the file later takes over the anchor that is in it, though the wall may have been set since."""
    anchor = struct.unpack("@q", made.read_bytes()[ANCHOR_AT:BOOT_AT])[0]
    patch(made, ANCHOR_AT, struct.pack("@q", anchor - 3_600_000_000))
    with Limiter(at(made)) as limiter:
        assert abs(limiter.store.clock.ticks() / 1_000_000 - (time.time() - 3600)) < 60
        assert limiter.check("key", LIMIT).remaining == 996


# Which files are refused


def test_refuses_a_foreign_file(counters: Path) -> None:
    counters.write_bytes(b"# my precious notes\n" * 1000)
    assert "not a Crestgate counter file" in refusal(counters)
    assert counters.read_bytes() == b"# my precious notes\n" * 1000


def test_refuses_an_empty_file(counters: Path) -> None:
    counters.touch()
    refusal(counters)
    assert counters.stat().st_size == 0


@pytest.mark.parametrize("size", [1, 8, 20, 100, 4095, 4096, 10_000, -1])
def test_refuses_a_truncated_file(size: int, made: Path) -> None:
    os.truncate(made, size if size > 0 else made.stat().st_size - 1)
    refusal(made)


def test_refuses_a_file_that_is_too_long(made: Path) -> None:
    os.truncate(made, made.stat().st_size + 4096)
    refusal(made)


def test_refuses_a_newer_layout(made: Path) -> None:
    patch(made, VERSION_AT, struct.pack("=I", VERSION + 1))
    message = refusal(made)
    assert "newer" in message
    assert str(VERSION + 1) in message


def test_refuses_an_older_layout(made: Path) -> None:
    patch(made, VERSION_AT, struct.pack("=I", 0))
    assert "older" in refusal(made)


@pytest.mark.parametrize("offset", [12, 16, 24, 32, 40, 48, 63, CRC_AT])
def test_refuses_a_damaged_header(offset: int, made: Path) -> None:
    damaged = made.read_bytes()[offset] ^ 0x10
    patch(made, offset, bytes([damaged]))
    assert "corrupt" in refusal(made)


def test_refuses_a_header_that_only_looks_right(made: Path) -> None:
    """Sizes that the file does not have, with a sum that fits them."""
    header = bytearray(made.read_bytes()[:CRC_AT])
    header[24:32] = struct.pack("=q", 1000)  # stripes
    patch(made, 0, bytes(header) + struct.pack("=I", zlib.crc32(bytes(header))))
    refusal(made)


def test_refuses_another_number_of_keys(made: Path) -> None:
    message = refusal(made, f"{at(made)}?max_keys=60")
    assert "50" in message
    assert "60" in message
    with Limiter(f"{at(made)}?max_keys=50") as limiter:
        assert limiter.peek("key", LIMIT).remaining == 997


def test_refuses_a_missing_folder(tmp_path: Path) -> None:
    refusal(tmp_path / "missing" / "counters")


def test_refuses_a_folder(tmp_path: Path) -> None:
    refusal(tmp_path)
    with pytest.raises(ConfigError, match="name the file"):
        Limiter(f"{at(tmp_path)}/")


def test_refuses_a_pipe(counters: Path) -> None:
    os.mkfifo(counters)
    refusal(counters)


def test_refuses_a_device() -> None:
    refusal(Path("/dev/null"))


def test_rejected_file_leaves_nothing_open(counters: Path) -> None:
    counters.write_bytes(b"no counters here")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        refusal(counters)
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(counters.parent) == [counters.name]


# Who makes it


def test_concurrent_creators_share_one_file(tmp_path: Path, start: Start) -> None:
    children = [
        start("file_programs.check", url=at(tmp_path / "counters"), limit=LIMIT, times=5, wait=True) for _ in range(4)
    ]
    for word in ("ready", "checked"):
        for child in children:
            assert child.receive() == word
        for child in children:
            child.send("go")
    message = [child.finish() for child in children]
    assert [each["used"] for each in message] == [20] * 4
    assert len({each["salt"] for each in message}) == 1
    assert os.listdir(tmp_path) == ["counters"], "no half-made file is left"


def test_full_disk_is_reported(counters: Path, start: Start) -> None:
    message = start("file_programs.open_small", url=f"{at(counters)}?max_keys=1000", max_bytes=100_000).finish()
    assert message.startswith("StoreError")
    assert str(counters) in message
    assert os.listdir(counters.parent) == []


def test_full_disk_is_an_error_and_not_a_crash(counters: Path) -> None:
    """A mapped file with holes kills whoever writes into one when there is no room left for it (SIGBUS)."""
    enter = [shutil.which("unshare") or "unshare", "--user", "--map-root-user", "--mount"]
    script = (
        f"mkdir {counters} && mount -t tmpfs -o size=300k tmpfs {counters} && "
        f"exec {sys.executable} -m integration.child_main file_programs.fill "
        f'\'{{"url": "shared://{counters}/file?max_keys=5000", "keys": 5000}}\''
    )
    if subprocess.run([*enter, "mount", "-t", "tmpfs", "tmpfs", counters.parent], check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    done = subprocess.run(
        [*enter, "sh", "-c", script], check=False, stdout=subprocess.PIPE, env=environment, timeout=60, text=True
    )
    assert done.returncode == 0, f"ended with {done.returncode}"
    assert done.stdout.startswith('"StoreError') or "failed" in done.stdout


@pytest.mark.parametrize("where", ["named", "path"])
def test_file_mode_is_0600(where: str, counters: Path, name: str) -> None:
    with Limiter(f"shared://{name}" if where == "named" else at(counters)) as limiter:
        path = Path(path_of(limiter))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_uid == os.geteuid()


@pytest.fixture
def name() -> Iterator[str]:
    """A name for shared://name that nobody else uses; its file is gone afterwards."""
    name = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    for folder in ("/dev/shm", tempfile.gettempdir()):
        for path in Path(folder).glob(f"crestgate-*-{name}"):
            path.unlink()


def path_of(limiter: Limiter) -> str:
    store = limiter.store
    assert isinstance(store, SharedStore)
    return store.path


def test_named_store_is_in_dev_shm(name: str) -> None:
    with Limiter(f"shared://{name}") as limiter, Limiter(f"shared://{name}") as other:
        path = Path(path_of(limiter))
        assert path.parent == Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
        assert str(os.geteuid()) in path.name
        assert limiter.check("key", LIMIT).remaining == 999
        assert other.check("key", LIMIT).remaining == 998


@pytest.mark.parametrize("dangling", [False, True])
def test_named_store_rejects_a_symlink(dangling: bool, name: str, made: Path) -> None:
    """Anybody may write where names live: what somebody has put there leads nowhere."""
    with Limiter(f"shared://{name}") as limiter:
        path = Path(path_of(limiter))
    path.unlink()
    target = made.with_name("elsewhere") if dangling else made
    path.symlink_to(target)
    refusal(path, f"shared://{name}")
    assert os.path.lexists(target) == (not dangling)


def test_path_may_be_a_symlink(made: Path) -> None:
    link = made.with_name("link")
    link.symlink_to(made)
    assert remaining(link) == 997


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_named_store_of_another_user_is_rejected(name: str) -> None:
    with Limiter(f"shared://{name}") as limiter:
        path = Path(path_of(limiter))
    os.chown(path, 12_345, 12_345)
    assert "another user" in refusal(path, f"shared://{name}")


def test_unlinked_file_stays_usable(made: Path, start: Start) -> None:
    """Whoever has it open goes on, and so do the children they fork; whoever comes later has another file."""
    child = start("file_programs.check_on_request", url=at(made), limit=LIMIT)
    assert child.receive() == "ready"
    with Limiter(at(made)) as limiter:
        made.unlink()
        child.send("check")
        assert child.receive() == ["ok", 996, "ok", 995]
        assert limiter.check("key", LIMIT).remaining == 994
        with Limiter(at(made)) as another:
            assert another.check("key", LIMIT).remaining == 999
        child.send("check")
        assert child.receive() == ["ok", 993, "ok", 992]


def test_replaced_file_is_a_separate_store(made: Path, start: Start) -> None:
    """The path leads to another file of counters by now: a forked child goes on with the one its parent has."""
    child = start("file_programs.check_on_request", url=at(made), limit=LIMIT)
    assert child.receive() == "ready"
    made.unlink()
    with Limiter(f"{at(made)}?max_keys=3000") as another:
        child.send("check")
        assert child.receive() == ["ok", 996, "ok", 995]
        assert another.check("key", LIMIT).remaining == 999


def test_closing(made: Path) -> None:
    """Closing twice is fine. A limiter that was closed lets nobody in, whatever is to be done about store errors."""
    before = len(os.listdir("/proc/self/fd"))
    limiter = Limiter(at(made), on_store_error="open")
    limiter.close()
    limiter.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(StoreError, match="closed"):
        limiter.check("key", LIMIT)
    with pytest.raises(StoreError, match="closed"):
        limiter.reset("key", LIMIT)


def check_until_closed(limiter: Limiter) -> None:
    while True:
        limiter.check("key", LIMIT)
        limiter.check("key", [LIMIT, "5/year using sliding_window_log"])


def repeat_until_closed(limiter: Limiter) -> None:
    """The first idempotent request opens a second file."""
    while True:
        take_once(limiter.store, "name", "key")


@pytest.mark.parametrize("use", [check_until_closed, repeat_until_closed])
def test_closing_while_threads_check(made: Path, use: Callable[[Limiter], None]) -> None:
    """Those who come too late are told so, and nothing else goes wrong."""
    for attempt in range(100):
        limiter = Limiter(at(made), on_store_error="closed")
        odd: list[BaseException] = []
        going = threading.Barrier(5)

        def work(limiter: Limiter = limiter, odd: list[BaseException] = odd, going: threading.Barrier = going) -> None:
            going.wait(TIMEOUT)
            try:
                use(limiter)
            except StoreError:
                return
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is kept for the assertion
                odd.append(error)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        going.wait(TIMEOUT)
        time.sleep(0.002 * (attempt % 2))
        limiter.close()
        for thread in threads:
            thread.join(TIMEOUT)
        assert odd == []
        assert not any(thread.is_alive() for thread in threads)
