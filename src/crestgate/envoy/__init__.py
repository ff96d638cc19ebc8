"""Limits on Envoy's descriptors, from the YAML that envoyproxy/ratelimit reads."""
