"""Prometheus metrics of a program's limits: decisions by limit, how long checks take, whether the store works."""

from prometheus_client import CollectorRegistry, generate_latest

from crestgate import Limiter
from crestgate.observers.prometheus import PrometheusObserver

registry = CollectorRegistry()  # leave it out for the global one, which most programs expose
observer = PrometheusObserver(registry)
limiter = Limiter("memory://", plans={"gold": "2/minute"}, observer=observer)

for user in ("alice", "alice", "alice", "bob"):
    limiter.check(f"user:{user}", "gold")

shown = ("crestgate_allowed_total", "crestgate_blocked_total", "crestgate_check_duration_seconds_count")
for line in generate_latest(registry).decode().splitlines():
    if line.startswith(shown):
        print(line)
