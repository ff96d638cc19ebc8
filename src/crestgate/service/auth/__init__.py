"""Authentication and authorization of the service: API keys, scopes, limits on callers, cross-site requests."""
