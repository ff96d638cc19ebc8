"""All gRPC methods of a worker, by path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crestgate.service.auth.guard import required_check_scope
from crestgate.service.checks.reservations import ReservationService
from crestgate.service.grpc.services.health import HealthService
from crestgate.service.grpc.services.method import GrpcMethod, GrpcMethods
from crestgate.service.grpc.services.rate_limiter import RateLimiter
from crestgate.service.grpc.services.reflection import Reflection
from crestgate.service.grpc.services.reservations import Reservations
from crestgate.service.grpc.transport.call import Method

if TYPE_CHECKING:
    from crestgate.service.auth.guard import Guard
    from crestgate.service.checks.envoy import EnvoyService
    from crestgate.service.checks.service import CheckService
    from crestgate.service.dependencies import Dependencies
    from crestgate.service.observability.health import Health
    from crestgate.service.observability.request_log import RequestLog

__all__ = ["build_methods"]

RATE_LIMITER = "crestgate.v1.RateLimiter"
ENVOY = "envoy.service.ratelimit.v3.RateLimitService"
HEALTH = "grpc.health.v1.Health"
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def build_methods(
    dependencies: Dependencies,
    guard: Guard,
    checks: CheckService,
    envoy: EnvoyService,
    health: Health,
    log: RequestLog,
) -> dict[bytes, Method]:
    """The methods of one worker."""
    shared = GrpcMethods(guard, dependencies.metrics, log)
    check_scope = required_check_scope(dependencies.settings.server, dependencies.settings.server.grpc)
    limiter = RateLimiter(checks, envoy)
    reservations = Reservations(ReservationService(checks))
    services = [RATE_LIMITER, ENVOY, HEALTH, *REFLECTIONS]
    probes = HealthService(health, services)
    reflection = Reflection(services)
    methods = [
        GrpcMethod(shared, f"/{RATE_LIMITER}/CheckRateLimit", limiter.check, check_scope),
        GrpcMethod(shared, f"/{RATE_LIMITER}/CheckRateLimitBatch", limiter.batch, check_scope),
        GrpcMethod(shared, f"/{RATE_LIMITER}/GetRemainingQuota", limiter.quota, check_scope),
        GrpcMethod(shared, f"/{RATE_LIMITER}/ResetLimit", limiter.reset, "write"),
        GrpcMethod(shared, f"/{RATE_LIMITER}/Reserve", reservations.reserve, check_scope),
        GrpcMethod(shared, f"/{RATE_LIMITER}/Settle", reservations.settle, check_scope),
        GrpcMethod(shared, f"/{RATE_LIMITER}/Release", reservations.release, check_scope),
        GrpcMethod(shared, f"/{RATE_LIMITER}/Extend", reservations.extend, check_scope),
        GrpcMethod(shared, f"/{ENVOY}/ShouldRateLimit", envoy.should_rate_limit, check_scope),
        GrpcMethod(shared, f"/{HEALTH}/Check", probes.check, public=True),
        GrpcMethod(shared, f"/{HEALTH}/List", probes.list, public=True),
        GrpcMethod(shared, f"/{HEALTH}/Watch", stream_handler=probes.watch, public=True),
        *[
            GrpcMethod(shared, f"/{name}/ServerReflectionInfo", stream_handler=reflection.answer, public=True)
            for name in REFLECTIONS
        ],
    ]
    return {method.path.encode(): method.method() for method in methods}
