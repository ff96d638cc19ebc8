"""HTTP: the protocol, the fast path for checks, the router and its endpoints."""
