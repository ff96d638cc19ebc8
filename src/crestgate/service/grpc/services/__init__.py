"""The gRPC services: health, reflection, crestgate.v1.RateLimiter and Envoy's RateLimitService."""
