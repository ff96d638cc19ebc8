"""Interactive demo: several worker processes, one shared counter file, exact limits.

    python examples/demo.py [--port 8080] [--workers 4] [--check]

The parent opens a socket on the loopback address and forks the workers, which all accept on it. Each worker has a
`Limiter` of its own on one `shared://` file in a temporary folder; nothing else connects them. `GET /` is a page with
buttons, `GET /hit?key=…&limit=…` asks for one request and answers in JSON, 200 or 429, `GET /peek?…` only looks.
`--check` starts it on a free port, fires 200 requests from 8 threads at a limit of 50 an hour and expects that exactly
50 pass. The page is part of this file, so that the file can be copied and run alone.
"""

import argparse
import json
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from crestgate import Decision, Limiter

HOST = "127.0.0.1"
TRY = "/hit?key=you&limit=3/minute"
STOPPING = {signal.SIGINT, signal.SIGTERM}

LIMITS = [  # name, notation, what it is like
    ("Token bucket", "5/second burst 20", "Saves up to 20 requests, then lives on 5 a second."),
    ("Leaky bucket", "5/second burst 20 using leaky_bucket", "A queue of 20 places; what is admitted gets a delay."),
    ("GCRA", "2/second burst 10 using gcra", "Decides as a token bucket does, by one time instead of a level."),
    ("Fixed window", "30/10s using fixed_window", "30 in each ten seconds of the wall clock."),
    ("Sliding window log", "30/10s using sliding_window_log", "Never more than 30 in any ten seconds."),
    ("Sliding window counter", "30/10s using sliding_window_counter", "Nearly as even, from two numbers."),
]


class Handler(BaseHTTPRequestHandler):
    """Answers one request. A connection carries only one, so that the next may meet another worker."""

    server: "Worker"
    timeout = 10  # seconds that an idle connection is kept

    def do_GET(self) -> None:
        try:
            url = urlsplit(self.path)
            if url.path == "/":
                self.answer(200, "text/html", PAGE.replace("__LIMITS__", json.dumps(LIMITS)))
            elif url.path in ("/hit", "/peek"):
                self.decide(url.path, parse_qs(url.query, keep_blank_values=True, max_num_fields=10))
            else:
                self.say(404, {"error": f"there is nothing at {url.path}: try / or {TRY}"})
        except ValueError as error:  # what a caller got wrong; the library's messages say how to put it right
            self.say(400, {"error": str(error).splitlines()[0]})

    def decide(self, path: str, query: dict[str, list[str]]) -> None:
        for name in query:
            if name not in ("key", "limit", "cost"):
                raise ValueError(f"unknown parameter {name!r}: there are key, limit and cost, as in {TRY}")
        key, limit, cost = (query.get(name, [default]) for name, default in (("key", ""), ("limit", ""), ("cost", "1")))
        if len(key) != 1 or len(limit) != 1 or not limit[0] or len(cost) != 1 or not cost[0].isdecimal():
            raise ValueError(f"give one key, one limit and, if you like, a whole number as cost, as in {TRY}")
        ask = self.server.limiter.check if path == "/hit" else self.server.limiter.peek
        decision = ask(key[0], limit[0], int(cost[0]))
        allowed = decision.allowed or path == "/peek"
        self.say(200 if allowed else 429, describe(decision), None if allowed else decision.retry_after)

    def say(self, status: int, values: dict[str, object], retry_after: float | None = None) -> None:
        self.answer(status, "application/json", json.dumps(values) + "\n", retry_after)

    def answer(self, status: int, kind: str, text: str, retry_after: float | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if retry_after is not None:
            self.send_header("Retry-After", str(math.ceil(retry_after)))  # whole seconds, never too early
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the standard library's
        """Hundreds of lines would hide the few that matter."""


def describe(decision: Decision) -> dict[str, object]:
    fields = ("allowed", "limit", "remaining", "retry_after", "reset_after", "delay", "reason", "name", "state")
    return {**{field: getattr(decision, field) for field in fields}, "worker": os.getpid()}


class Worker(ThreadingMixIn, HTTPServer):
    """A worker process's server: accepts on the socket that all of them share."""

    daemon_threads = True  # a browser opens connections that it may never use; they must hold nobody up

    def __init__(self, listener: socket.socket, limiter: Limiter, parent: int) -> None:
        super().__init__(listener.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.limiter = limiter
        self.parent = parent

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a browser that goes away early is no news
            super().handle_error(request, client_address)

    def service_actions(self) -> None:
        if os.getppid() != self.parent:
            os._exit(0)  # the parent was killed: nobody else would stop us


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait: they must not find a worker half started or half gone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


class Demonstration:
    """The parent: owns the socket, the folder and the workers, and takes them all away again."""

    def __init__(self, port: int) -> None:
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((HOST, port))
        self.listener.listen(512)
        self.listener.setblocking(False)  # several workers wake up for one connection, and one gets it
        self.port: int = self.listener.getsockname()[1]
        self.folder = tempfile.mkdtemp(prefix="crestgate-demo-")
        self.pids: set[int] = set()

    def hire(self) -> int:
        """Start one more worker."""
        parent = os.getpid()
        with undisturbed():
            pid = os.fork()
            if pid == 0:
                self.work(parent)
            self.pids.add(pid)
        return pid

    def work(self, parent: int) -> None:
        """The life of a worker; it never returns."""
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody: the parent sees to the rest
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            with Limiter(f"shared://{quote(self.folder)}/counters") as limiter:
                Worker(self.listener, limiter, parent).serve_forever()
        except Exception as error:  # noqa: BLE001 - the process ends here, and says why
            print(f"worker {os.getpid()}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)

    def watch(self) -> None:
        """Put another worker in the place of each that is killed; end when one gives up by itself."""
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # looks only, so that no signal can lose the pid
            if ended is None or ended.si_code == os.CLD_EXITED:
                raise SystemExit("a worker could not go on")
            with undisturbed():
                pid, _ = os.waitpid(ended.si_pid, 0)
                self.pids.discard(pid)
            print(f"worker {pid} was killed; {self.hire()} takes its place, and the counters are intact", flush=True)

    def stop(self) -> None:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 3
        for pid in self.pids:
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
        self.listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def introduce(demo: Demonstration) -> None:
    address = f"http://{HOST}:{demo.port}"
    print(f"Crestgate demonstration: {len(demo.pids)} worker processes, one shared file of counters.")
    print(f"Open {address}/ in a browser, or ask for yourself:")
    print(f"    curl -i '{address}{TRY}'")
    print(f"    curl -i '{address}/hit?key=you&limit=5/second+burst+20'")
    print(f"The workers are {', '.join(map(str, sorted(demo.pids)))}. Kill one if you like (kill -9): nothing is lost.")
    print("Ctrl-C stops everything.", flush=True)


def check(port: int) -> int:
    """Many requests at once through all the workers: exactly the limit must pass."""

    def hit(_: int) -> tuple[int, bool, int]:
        connection = HTTPConnection(HOST, port, timeout=30)
        try:
            connection.request("GET", "/hit?key=check&limit=50/hour")
            response = connection.getresponse()
            advised = int(response.getheader("Retry-After", "0")) > 0
            return response.status, advised, json.loads(response.read())["worker"]
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(hit, range(200)))
    allowed = sum(status == 200 and not advised for status, advised, _ in answers)
    denied = sum(status == 429 and advised for status, advised, _ in answers)
    workers = len({worker for _, _, worker in answers})
    fine = allowed == 50 and denied == 150 and workers >= 2
    verdict = "ok" if fine else "WRONG"
    print(f"200 requests at 50/hour: {allowed} allowed, {denied} denied, by {workers} workers: {verdict}")
    return 0 if fine else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Several worker processes, one shared counter file, exact limits.")
    parser.add_argument("--port", type=int, default=8080, help="where to listen on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--workers", type=int, default=4, help="how many processes answer (default: 4)")
    parser.add_argument("--check", action="store_true", help="prove on a free port that the limit holds, and stop")
    options = parser.parse_args()
    if not 0 <= options.port <= 65535 or not 1 + options.check <= options.workers <= 64:
        parser.error("--port goes from 0 to 65535, --workers from 1 (with --check: 2) to 64")
    try:
        demo = Demonstration(0 if options.check else options.port)
    except OSError as error:
        print(f"cannot listen on {HOST}:{options.port}: {error.strerror}; try another --port", file=sys.stderr)
        return 1
    for number in STOPPING:
        signal.signal(number, signal.default_int_handler)  # either way it is a KeyboardInterrupt
    try:
        with suppress(KeyboardInterrupt):
            for _ in range(options.workers):
                demo.hire()
            if options.check:
                return check(demo.port)
            introduce(demo)
            demo.watch()
    finally:
        demo.stop()
    print("\nStopped: the workers are gone, and so is the folder.")
    return 1 if options.check else 0


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Crestgate: live demonstration</title>
<link rel="icon" href="data:,">
<style>
  :root { --ink: #1c2733; --soft: #5a6876; --line: #dfe5ea; --paper: #fff; --back: #f5f7f9;
          --yes: #1a7f4b; --no: #b3362b; --water: #2f6fb0; --warn: #8a5a00; }
  * { box-sizing: border-box; }
  body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
  main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 40px; }
  h1 { margin: 0; font-size: 1.7rem; line-height: 1.2; }
  h2 { margin: 0; font-size: 1.1rem; }
  p { margin: 6px 0 0; max-width: 68ch; color: var(--soft); }
  code { font: 0.84rem ui-monospace, "DejaVu Sans Mono", monospace; color: var(--ink); overflow-wrap: anywhere; }
  form { display: flex; gap: 10px; align-items: center; margin: 18px 0; }
  input { font: inherit; padding: 7px 10px; flex: 0 1 14em; min-width: 0;
          border: 1px solid #b9c4ce; border-radius: 6px; }
  button { font: inherit; font-size: 0.95rem; min-height: 40px; padding: 6px 14px; border-radius: 6px; cursor: pointer;
           white-space: nowrap; color: var(--ink); background: var(--paper); border: 1px solid #b9c4ce; }
  button:hover { border-color: var(--water); color: var(--water); }
  button:focus-visible, input:focus-visible { outline: 3px solid #a9cdf0; outline-offset: 1px; }
  #cards { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); }
  .card { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px;
          display: flex; flex-direction: column; }
  .card code { margin-top: 3px; }
  .card p { margin-bottom: 14px; }
  .top { display: flex; justify-content: space-between; align-items: baseline; gap: 8px; }
  .state { font-size: 0.78rem; padding: 1px 9px; border-radius: 99px; background: #e7f3ec; color: var(--yes); }
  .state.warning { background: #fdf1d6; color: var(--warn); }
  .state.throttled { background: #fbe6e4; color: var(--no); }
  .meter { height: 10px; margin: auto 0 4px; flex: none; border-radius: 5px; background: #e6ecf1; overflow: hidden; }
  .meter div { height: 100%; width: 100%; background: var(--water); transition: width 0.15s linear; }
  .row { display: flex; justify-content: space-between; gap: 12px; font-size: 0.9rem; color: var(--soft);
         font-variant-numeric: tabular-nums; }
  .fire { display: flex; gap: 8px; margin-top: 12px; align-items: center; }
  .fire button { flex: 1; }
  .last { margin-top: 8px; min-height: 1.5em; }
  .tally { display: flex; gap: 20px; margin-top: 12px; font-variant-numeric: tabular-nums; }
  .tally b { font-size: 1.35rem; margin-right: 5px; }
  .yes b { color: var(--yes); } .no b { color: var(--no); }
  .dots { display: flex; flex-wrap: wrap; gap: 3px; margin-top: 10px; height: 23px; overflow: hidden; }
  .dots i { width: 10px; height: 10px; border-radius: 2px; background: var(--yes); }
  .dots i.no { background: #e2a49e; }
  #workers { margin-top: 22px; font-size: 0.95rem; }
  #workers ul { list-style: none; display: flex; flex-wrap: wrap; gap: 8px; padding: 0; margin: 8px 0 0; }
  #workers li { background: var(--paper); border: 1px solid var(--line); border-radius: 6px; padding: 4px 12px;
                font-variant-numeric: tabular-nums; }
  #error { color: var(--no); margin: 0 0 14px; }
  #error:empty { display: none; }
</style>
</head>
<body>
<main>
  <h1>Crestgate, live</h1>
  <p>Each request goes to whichever worker process takes it first. The workers share nothing but one file of counters,
     and together they admit exactly what the limit says.</p>
  <form id="who">
    <label for="key">Key</label> <input id="key" value="you" maxlength="100" autocomplete="off">
    <button>Fresh key</button>
  </form>
  <p id="error" role="alert"></p>
  <div id="cards"></div>
  <section id="workers"><h2>Who answered</h2><ul><li>nobody yet: fire a request</li></ul></section>
</main>
<template id="card"><article class="card">
  <div class="top"><h2></h2><span class="state">normal</span></div>
  <code></code><p></p>
  <div class="meter"><div></div></div>
  <div class="row"><span class="left">not asked yet</span><span class="wait"></span></div>
  <div class="fire">
    <span>Fire</span><button data-n="1">1</button><button data-n="20">20</button><button data-n="100">100</button>
  </div>
  <div class="tally"><span class="yes"><b>0</b>allowed</span><span class="no"><b>0</b>denied</span></div>
  <div class="dots"></div>
  <div class="row last"></div>
</article></template>
<script>
const limits = __LIMITS__, workers = new Map(), cards = [];
const byId = id => document.getElementById(id);
const seconds = s => s === null ? "never" : s >= 10 ? s.toFixed(0) + " s" : s.toFixed(1) + " s";

async function ask(path, limit) {
  try {
    const reply = await fetch(path + "?" + new URLSearchParams({key: byId("key").value, limit}));
    const answer = await reply.json();
    byId("error").textContent = answer.error || "";
    return answer.error ? null : answer;
  } catch {
    byId("error").textContent = "The demonstration does not answer. Was it stopped?";
    return null;
  }
}

function makeCard([title, limit, about]) {
  const node = byId("card").content.cloneNode(true).firstElementChild, part = name => node.querySelector(name);
  const card = {node, limit, settled: true};
  part("h2").textContent = title; part("code").textContent = limit; part("p").textContent = about;
  card.clear = () => {
    card.yes = card.no = 0; card.settled = true; part(".dots").replaceChildren();
    part(".meter div").style.width = "100%";
    part(".yes b").textContent = part(".no b").textContent = "0"; part(".left").textContent = "not asked yet";
    part(".wait").textContent = part(".last").textContent = ""; part(".state").textContent = "normal";
    part(".state").className = "state";
  };
  card.show = d => {
    part(".meter div").style.width = 100 * d.remaining / d.limit + "%";
    part(".left").textContent = `${d.remaining} of ${d.limit} left`;
    part(".wait").textContent = d.retry_after === 0 ? "next one: now" : `retry after ${seconds(d.retry_after)}`;
    part(".state").textContent = d.state; part(".state").className = "state " + d.state;
    card.settled = d.reset_after === 0;
  };
  card.fire = async () => {
    const d = await ask("/hit", limit);
    if (!d) return;
    d.allowed ? card.yes++ : card.no++;
    part(".yes b").textContent = card.yes; part(".no b").textContent = card.no;
    const dot = document.createElement("i");
    dot.className = d.allowed ? "yes" : "no"; part(".dots").prepend(dot);
    while (part(".dots").children.length > 60) part(".dots").lastChild.remove();
    const delay = d.delay ? `, delay ${seconds(d.delay)}` : "";
    part(".last").textContent = `last: worker ${d.worker}, ${d.reason}${delay}`;
    workers.set(d.worker, (workers.get(d.worker) || 0) + 1);
    card.show(d); showWorkers();
  };
  for (const button of node.querySelectorAll(".fire button"))
    button.onclick = () => { for (let i = 0; i < button.dataset.n; i++) card.fire(); };
  card.clear();
  return card;
}

function showWorkers() {
  byId("workers").querySelector("ul").replaceChildren(...[...workers].sort((a, b) => a[0] - b[0]).map(([pid, n]) =>
    Object.assign(document.createElement("li"), {textContent: `worker ${pid}: ${n}`})));
}

for (const limit of limits) { const card = makeCard(limit); cards.push(card); byId("cards").append(card.node); }
byId("key").onchange = () => cards.forEach(card => card.clear());
byId("who").onsubmit = event => {
  event.preventDefault();
  byId("key").value = "you-" + Math.random().toString(36).slice(2, 8);
  cards.forEach(card => card.clear());
};
setInterval(async () => {  // watch the counters recover: a peek consumes nothing
  for (const card of cards) if (!card.settled) { const d = await ask("/peek", card.limit); if (d) card.show(d); }
}, 500);
</script>
</body>
</html>
"""

if __name__ == "__main__":
    sys.exit(main())
