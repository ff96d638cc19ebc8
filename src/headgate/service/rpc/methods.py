"""What can be called over gRPC: every method of every service by its path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.service.auth.guard import needed_to_check
from headgate.service.rpc.call import Method
from headgate.service.rpc.entry import Door, Entry
from headgate.service.rpc.health import HealthService
from headgate.service.rpc.limiter import RateLimiter
from headgate.service.rpc.reflection import Reflection

if TYPE_CHECKING:
    from headgate.service.auth.guard import Guard
    from headgate.service.data.plane import DataPlane
    from headgate.service.health import Health
    from headgate.service.parts import Parts
    from headgate.service.request_log import RequestLog
    from headgate.service.rpc.envoy import Envoy

__all__ = ["make_methods"]

RATE_LIMITER = "headgate.v1.RateLimiter"
ENVOY = "envoy.service.ratelimit.v3.RateLimitService"
HEALTH = "grpc.health.v1.Health"
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def make_methods(
    parts: Parts, guard: Guard, plane: DataPlane, health: Health, log: RequestLog, envoy: Envoy
) -> dict[bytes, Method]:
    """The methods of one worker."""
    door = Door(guard, parts.tally, log)
    to_check = needed_to_check(parts.settings.server, parts.settings.server.grpc)
    limiter = RateLimiter(plane, envoy.reset)
    entries = [
        Entry(
            door,
            f"/{RATE_LIMITER}/CheckRateLimit",
            to_check,
            limiter.check,
            limiter.check_at_once if plane.quick else None,
        ),
        Entry(
            door,
            f"/{RATE_LIMITER}/CheckRateLimitBatch",
            to_check,
            limiter.batch,
            limiter.batch_at_once if plane.quick else None,
        ),
        Entry(door, f"/{RATE_LIMITER}/GetRemainingQuota", to_check, limiter.quota),
        Entry(door, f"/{RATE_LIMITER}/ResetLimit", "write", limiter.reset),
        Entry(
            door,
            f"/{ENVOY}/ShouldRateLimit",
            to_check,
            envoy.in_time,
            envoy.at_once if plane.quick else None,
        ),
    ]
    services = [*_services(entries), HEALTH, *REFLECTIONS]
    well = HealthService(health, services)
    entries += [
        Entry(door, f"/{HEALTH}/Check", in_time=well.check, public=True),
        Entry(door, f"/{HEALTH}/List", in_time=well.every, public=True),
        Entry(door, f"/{HEALTH}/Watch", streaming=well.watch, public=True),
    ]
    reflection = Reflection(services)
    entries += [
        Entry(door, f"/{name}/ServerReflectionInfo", streaming=reflection.answer, public=True) for name in REFLECTIONS
    ]
    return {entry.path.encode(): entry.method() for entry in entries}


def _services(entries: list[Entry]) -> list[str]:
    return list(dict.fromkeys([entry.path.split("/")[1] for entry in entries]))
