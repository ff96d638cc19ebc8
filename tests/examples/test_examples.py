"""Examples and documentation do what they show.

The examples are run as programs, and their output is compared. The documentation follows these rules:

- A fenced `python` block must stand, line for line and apart from indentation, in a file of examples/; those are run.
  The guides of docs/migrating quote the applications of tests/migration_guides, which are run there.
- A fenced `pycon` block is a session: it is run as a doctest, in one namespace for each page, from top to bottom, and
  must print what it shows. (An ellipsis stands for any text.)
- A fenced `yaml` block must stand, in the same way, in a YAML file of examples/; those are loaded.

There is no other kind: further fences may only be `sh` or `text`. And every relative link must lead to a file that is
there, and to a heading that is there if it names one.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import crestgate
from crestgate.errors import ValidationError

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CONFIGURATIONS = sorted((ROOT / "examples").rglob("*.yaml"))
WITH_MISTAKES = {"mistakes.yaml"}  # what is said about them is in docs/configuration.md
WRITTEN_BY_A_RUN = {ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.svg"}  # may not be there yet
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted({*(ROOT / "docs").rglob("*.md")} - WRITTEN_BY_A_RUN)]
APPLICATIONS = sorted((ROOT / "tests" / "migration_guides").glob("*/*.py"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

PRINTED = {
    "quickstart.py": """
        [True, True, True, False]
        limited: 0 of 3 left, retry after NUMBER s
        """,
    "chain_and_plans.py": """
        allowed=True by gold, 17 left
          gold: 17 of 20 left
          daily: 47 of 50 left
        allowed=False by gold, retry after 0.3 s
          untouched: [17, 47]
        ['free', 'free#2']
        """,
    "async_limiter.py": """
        allowed: 3 of 5
        three turns took about NUMBER s
        no turn in time: not admitted within 2 s
        """,
    "decorator.py": """
        profile of 42
        profile of 42
        denied: gold, 0 left
        profile of 7
        report sales
        denied: 1/minute
        bob
        bob
        bob
        None
        None
        denied: 2/minute
        free: AAA
        free: denied, 40 letters left
        gold: CCC
        staff: DD
        """,
    "reserve_tokens.py": """
        used 500, 500 left
        0 left
        denied, retry after 40.0 s
        failed, 1000 left
        not settled, 200 left
        because of
        hung up, 800 left
        """,
    "worker_processes.py": """
        admitted in all: 50 of 400
        """,
    "access_log.py": """
        203.0.113.66 - - [01/Jan/2026:00:00:00 +0000] "GET /products/0 HTTP/1.1" 200 512 "-" "example/1.0"
        4000 lines: name a file to write them to
        """,
    "calendar_quota.py": """
        budget: 950 of 1000 left, for 60 hours
        daily: 0 of 50 left, for 12 hours
        denied by daily, retry after 12 hours
        after midnight: True
        """,
    "virtual_time.py": """
        both passed: 24 hours and 30 seconds of virtual time
        """,
    "own_algorithm.py": """
        +  0 s  allowed=True  left=2  retry_after=0.0
        +200 s  allowed=True  left=1  retry_after=0.0
        +200 s  allowed=True  left=0  retry_after=0.0
        +200 s  allowed=False  left=0  retry_after=100.0
        +100 s  allowed=True  left=2  retry_after=0.0
        """,
    "pressure_events.py": """
        11 requests at once:
          user:42 on 10/minute: normal -> warning (1 left)
          user:42 on 10/minute: warning -> throttled (0 left)
          the last one: allowed=False, state=throttled
        6 seconds later, one more:
          user:42 on 10/minute: throttled -> warning (1 left)
        a minute later:
          user:42 on 10/minute: warning -> normal (9 left)
        """,
    "rules.py": """
        bob: allowed; left: orders-per-user 2, requests-per-address 4
        bob: allowed; left: orders-per-user 1, requests-per-address 3
        bob: allowed; left: orders-per-user 0, requests-per-address 2
        bob: denied by orders-per-user; left: orders-per-user 0, requests-per-address 2
        alice: allowed; left: orders-per-premium-user 9, requests-per-address 1
        alice: allowed; left: orders-per-premium-user 8, requests-per-address 0
        alice: denied by requests-per-address; left: orders-per-premium-user 8, requests-per-address 0
        bob, raised: 7 of 10 left by orders-per-premium-user
        would have been denied: {'stricter-orders': 3}
        no_rule
        """,
    "own_dimensions.py": """
        umbrella, small: allowed; left: per-org-and-model 40, per-org 940
        umbrella, small: denied by per-org-and-model; left: per-org-and-model 40, per-org 940
        umbrella, large: allowed; left: large-ceiling 40, per-org-and-model 20, per-org 860
        acme, small: allowed; left: acme 100, per-org 600
        acme, large: denied by large-ceiling; left: large-ceiling 40, acme-large 50, per-org 600
        no_rule
        """,
    "priorities.py": """
        sliding_window_counter: 30 critical, 50 batch
          then 20 more critical; batch may retry in 52.000001 s
        token_bucket: 30 critical, 50 batch
          then 20 more critical; batch may retry in 12.6 s
        batch: allowed; left: all-batch 40 of 80, per-org-batch 0 of 40
        batch: denied by per-org-batch; left: all-batch 40 of 80, per-org-batch 0 of 40
        other: allowed; left: all 50 of 100, per-org 0 of 50
        other: denied by per-org; left: all 50 of 100, per-org 0 of 50
        """,
    "redis_limits.py": """
        [True, True, True, False]
        elsewhere: limited, 0 of 3 left
        """,
    "async_redis.py": """
        allowed: 50 of 100
        left: 50
        """,
    "sql_limits.py": """
        [('uploads', 6), ('daily', 46)]
        allowed=False by uploads, 6 left
        [('uploads', 6), ('daily', 46)]
        """,
    "retry_httpx.py": """
          /orders: 429, come back after 1 s
          /orders: 200
        orders: 200
          /reports: 503, come back after 3600 s
        reports: 503
          /prices: 429, come back after 0 s
          /prices: 429, come back after 0 s
          /prices: 200
        prices: 200
        """,
    "outbound.py": """
        by httpx: [200, 200, 200]
        by requests: [200, 200, 200]
        on Sunday: 503
        not sent: call to 'shop-api' not allowed within 5 s: cooldown for NUMBER s
        """,
    "fastapi_app.py": """
        /search?q=a 200
        /search?q=b 200
        /search?q=c 429
        /item/1 200
        /item/2 200
        /item/3 429
        key-of-alice [200, 200, 200, 429]
        key-of-bob [200, 200, 200, 429]
        RateLimit-Policy: "100/minute";q=100;w=60, "2/minute";q=2;w=60
        X-RateLimit-Limit: 2
        X-RateLimit-Remaining: 0
        X-RateLimit-State: throttled
        {'title': 'Quota Exceeded', 'status': 429, 'violated-policies': ['2/minute'], 'reason': 'limited'}
        """,
    "fastapi_rules.py": """
        bob 200 {'orders-per-user': '2', 'requests-per-address': '4'}
        bob 200 {'orders-per-user': '1', 'requests-per-address': '3'}
        bob 200 {'orders-per-user': '0', 'requests-per-address': '2'}
        bob 429 {'orders-per-user': '0', 'requests-per-address': '2'}
        alice 200 {'orders-per-premium-user': '9', 'requests-per-address': '1'}
        alice 200 {'orders-per-premium-user': '8', 'requests-per-address': '0'}
        alice 429 {'orders-per-premium-user': '8', 'requests-per-address': '0'}
        """,
    "limit_an_api.py": """
        key-of-acme [200, 200, 200, 200]
        key-of-shop [200, 200, 200, 429]
        invented-1 [200, 200, 200, 429]
        invented-2 [429, 429, 429, 429]
        report [(200, None), (429, '3600')]
        healthz [200, 200, 200, 200]
        """,
    "background_jobs.py": """
        sent to alice@example.com
        again in 30.0 s
        sent to bob@example.com
        ['cleaned', 'another machine has run it', 'another machine has run it']
        """,
    "login_protection.py": """
        alice [200, 200, 200, 200, 200]
        bob [401, 401, 200, 401, 429]
        carol [200]
        """,
    "starlette_app.py": """
        {'X-Tenant': 'acme'} [(200, '2'), (200, '0'), (429, '0')]
        {'X-Tenant': 'b', 'X-Tier': 'gold'} [(200, '9'), (200, '7'), (200, '6')]
        {'X-Forwarded-For': '198.51.100.7'} [(200, '2'), (200, '0'), (429, '0')]
        {'sorry': '/hello', 'limit': 3}
        exempt: None
        """,
    "litestar_app.py": """
        [200, 404, 429]
        """,
    "quart_app.py": """
        [200, 404, 429]
        """,
    "flask_app.py": """
        /plain [200, 200, 200, 429]
        /item/1 [200, 200, 429]
        /ping [200, 200, 200, 200]
        /admin/users [200, 429]
        alice [200, 200, 429]
        bob [200, 200, 429]
        application/problem+json ['2/minute']
        """,
    "wsgi_app.py": """
        200 OK 1
        200 OK 0
        429 Too Many Requests 0
        """,
    "django_app.py": """
        items: [200, 200, 429]
        reports: [200, 429] 200
        searches: [200, 200, 429]
        nowhere: 404 89
        exempt: None
        """,
    "grpc_server.py": """
        Shout b'HELLO' 1
        Shout b'HELLO' 0
        Shout RESOURCE_EXHAUSTED "2/hour";q=2;w=3600 rate limit exceeded (2/hour)
        Cry b'HELLO' 99
        Whisper b'HELLO' None
        """,
    "limits_compat.py": """
        [True, True, True, False]
        left: 0
        cleared: True
        eight: True
        three more: False
        left: 2
        allowed: 3 of 10
        """,
    "locks.py": """
        raised to 110
        too late: nothing was written
        it is 115
        lock 'client:42' was not free within 0.1 s
        """,
    "migration.py": """
        3 left in the old store
        1 left in the new store
        1 counter carried
        """,
    "sharded.py": """
        allowed: 300
        again: 0
        moved: NUMBER of 300
        """,
    "metrics.py": """
        crestgate_allowed_total{dimension="key",rule="gold"} 3.0
        crestgate_blocked_total{dimension="key",rule="gold"} 1.0
        crestgate_check_duration_seconds_count 4.0
        """,
    "traces.py": """
        crestgate.check 1/minute True
        crestgate.check 1/minute False
        POST /orders None None
        """,
    "own_observer.py": """
        {'3/minute': 2}
        """,
    "store_failure.py": """
        before: ok
        ['fail_open: allowed', 'fail_open: allowed', 'fail_open: allowed', 'fail_open: allowed']
        100 checks took about NUMBER s
        failures: 104
        a reset is an error: nothing was forgotten
        ['fail_closed: denied', 'fail_closed: denied', 'fail_closed: denied', 'fail_closed: denied']
        ['fallback: allowed', 'fallback: allowed', 'fallback: allowed', 'fallback: denied']
        ['fallback: allowed', 'fallback: denied', 'fallback: denied', 'fallback: denied']
        after: ok
        """,
}

VARYING = {  # which NUMBER is not always the same, and within which bounds it must lie
    "quickstart.py": (r"retry after ([\d.]+) s", 15, 20),  # how busy the machine is
    "async_limiter.py": (r"about ([\d.]+) s", 0.2, 60),
    "outbound.py": (r"cooldown for (\d+) s", 20, 30),  # 30, less what a busy machine has taken
    "sharded.py": (r"moved: (\d+) of", 50, 150),  # about a third; which ones depends on the addresses
    "store_failure.py": (r"about ([\d.]+) s", 0, 10),  # without a breaker it would be 20 at least
}

ON_SERVERS = {  # the servers that an example is run on, besides the store it has by itself
    "redis_limits.py": ["redis_server", "redis_cluster", "redis_sentinels", "mariadb", "postgres"],
    "async_redis.py": ["redis_server", "redis_cluster"],
    "sql_limits.py": ["sqlite", "mariadb", "postgres"],
    "sharded.py": ["redis_server"],
}
RUNS = [(name, server) for name in PRINTED for server in ON_SERVERS.get(name, [""])]


def environment(**more: str) -> dict[str, str]:
    """The environment of this process, with the build of Crestgate under test."""
    quiet = {"GRPC_VERBOSITY": "NONE"}  # it logs how connections end, depending on who is first
    return {**os.environ, "PYTHONPATH": str(Path(crestgate.__file__).parent.parent), **quiet, **more}


# -- examples ---------------------------------------------------------------------------------------------------------


def test_every_example_is_run_here() -> None:
    elsewhere = {
        "demo.py",
        "grpc_client.py",
        "model_behind_envoy.py",
        "model_gateway.py",
        "resp_client.py",
        "service_client.py",
        "service_store.py",
    }  # below, beside this file, and tests/integration/proxies
    assert {path.name for path in EXAMPLES} == {*PRINTED, *elsewhere}


@pytest.mark.parametrize(("name", "server"), RUNS, ids=lambda value: value or "alone")
def test_example(name: str, server: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    program = [sys.executable, str(ROOT / "examples" / name)]
    where = environment(**stores(server, request))
    done = subprocess.run(program, env=where, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout
    if name in VARYING:
        pattern, least, most = VARYING[name]
        number = re.search(pattern, printed)
        assert number is not None
        assert least <= float(number[1]) <= most
        printed = printed.replace(number[0], number[0].replace(number[1], "NUMBER"))
    assert printed == textwrap.dedent(PRINTED[name]).lstrip("\n")
    assert list(tmp_path.iterdir()) == [], "it leaves no files"


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: file.name)
def test_configuration_can_be_used(file: Path) -> None:
    if file.name in WITH_MISTAKES:
        with pytest.raises(ValidationError):
            crestgate.Limiter.from_config(file, environ={})
    else:
        crestgate.Limiter.from_config(file, environ={}).close()


def stores(server: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """The variables that name a server of the tests to an example: patient ones, because tests share two cores."""
    if server in ("", "sqlite"):
        return {}
    url: str = request.getfixturevalue(server).url
    patient = f"{url}{'&' if '?' in url else '?'}timeout_ms=10000"
    databases = [urlsplit(patient)._replace(path=f"/{number}").geturl() for number in (1, 2, 3)]
    return {"CRESTGATE_STORE": patient, "STORES": " ".join(databases)}


# -- the live demonstration -------------------------------------------------------------------------------------------


def test_demo_checks_itself(tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "examples" / "demo.py"), "--check"]
    where = environment(TMPDIR=str(tmp_path))
    done = subprocess.run(program, env=where, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"200 requests at 50/hour: 50 allowed, 150 denied, by [2-4] workers: ok\n", done.stdout)
    assert list(tmp_path.iterdir()) == [], "the temporary folder is removed"


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_demo_serves_and_stops_cleanly(stop: signal.Signals, tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "examples" / "demo.py"), "--port", "0", "--workers", "3"]
    where = environment(TMPDIR=str(tmp_path))
    with subprocess.Popen(program, env=where, stdout=subprocess.PIPE, text=True, start_new_session=True) as demo:
        try:
            assert demo.stdout is not None
            output = ""
            while "Ctrl-C" not in output:
                line = demo.stdout.readline()
                assert line, f"it exited after printing {output!r}"
                output += line
            address = re.search(r"http://127\.0\.0\.1:\d+", output)
            workers = re.search(r"workers are ([\d, ]+)\.", output)
            assert address is not None
            assert workers is not None
            pids = [int(pid) for pid in workers[1].split(", ")]
            assert len(pids) == 3

            use(address[0])

            os.kill(pids[0], signal.SIGKILL)
            assert f"worker {pids[0]} was killed" in demo.stdout.readline()
            # The counter outlives the worker.
            assert ask(address[0] + "/hit?key=you&limit=2/hour")[0] == 429

            if stop is signal.SIGINT:
                os.killpg(demo.pid, stop)  # as a terminal does: everybody gets it
            else:
                demo.terminate()
            assert demo.wait(30) == 0
        finally:
            demo.kill()
        assert "Stopped" in demo.stdout.read()
    assert list(tmp_path.iterdir()) == [], "the temporary folder is removed"
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def use(address: str) -> None:
    """Requests to the demonstration, as of a browser, and invalid ones."""
    status, kind, page = ask_text(address + "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert "sliding_window_log" in page
    answers = [ask(address + "/hit?key=you&limit=2/hour") for _ in range(3)]
    assert [(status, retry is None) for status, retry, _ in answers] == [(200, True), (200, True), (429, False)]
    assert 1700 < int(answers[2][1] or 0) <= 1800
    assert [answer["remaining"] for _, _, answer in answers] == [1, 0, 0]
    assert [answer["state"] for _, _, answer in answers] == ["normal", "throttled", "throttled"]
    assert ask(address + "/peek?key=you&limit=2/hour")[0] == 200
    assert ask(address + "/hit?key=you&limit=2/hour&cost=5")[:2] == (429, None)
    for wrong, message in {
        "/hit": "give one key, one limit",
        "/hit?limit=2/hour": "key must not be empty",
        "/hit?key=you&limit=2/fortnight": "unknown unit 'fortnight'",
        "/hit?key=you&limit=2/hour&cost=-1": "a whole number as cost",
        "/hit?key=you&limit=2/hour&limit=3/hour": "one limit",
        "/hit?key=you&limits=2/hour": "unknown parameter 'limits'",
        "/hit?limit=2/hour&key=" + "k" * 2000: "key is 2000 bytes long",
    }.items():
        status, _, answer = ask(address + wrong)
        assert status == 400, wrong
        assert message in str(answer["error"]), wrong
    assert ask(address + "/nothing")[0] == 404


def ask(url: str) -> tuple[int, str | None, dict[str, object]]:
    """Status, Retry-After and the JSON of a response."""
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            return reply.status, reply.headers["Retry-After"], json.load(reply)
    except urllib.error.HTTPError as reply:
        with reply:
            return reply.code, reply.headers["Retry-After"], json.load(reply)


def ask_text(url: str) -> tuple[int, str, str]:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return reply.status, reply.headers["Content-Type"], reply.read().decode()


# -- documentation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_fences_are_closed_and_of_a_known_kind(page: Path) -> None:
    text = page.read_text()
    fences = FENCE.findall(text)
    assert text.count("```") == 2 * len(fences), "a fence is indented or not closed"
    assert {kind for kind, _ in fences} <= {"python", "pycon", "yaml", "sh", "text"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_and_yaml_blocks_stand_in_an_example(page: Path) -> None:
    examples = {
        "python": [path.read_text() for path in [*EXAMPLES, *APPLICATIONS]],
        "yaml": [path.read_text() for path in CONFIGURATIONS],
    }
    for kind, block in FENCE.findall(page.read_text()):
        if kind in examples:
            assert any(stands_in(block, source) for source in examples[kind]), f"in no example:\n{block}"


def stands_in(block: str, source: str) -> bool:
    """Whether the lines of a block follow each other in a source, whatever their common indentation."""
    wanted = textwrap.dedent(block).splitlines()
    lines = source.splitlines()
    starts = range(len(lines) - len(wanted) + 1)
    return any(textwrap.dedent("\n".join(lines[i : i + len(wanted)])).splitlines() == wanted for i in starts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sessions_print_what_they_show(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    session = "\n".join(block for kind, block in FENCE.findall(page.read_text()) if kind == "pycon")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(session, {"__name__": page.stem}, page.name, str(page), 0)
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=report.append)
    assert not failed, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if re.match(r"https?://", target):
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists() or file in WRITTEN_BY_A_RUN, target
        assert not heading or heading in headings(file), target


def headings(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
