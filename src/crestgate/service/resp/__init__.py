"""RESP, the protocol of Redis, as a front end of the checks: any Redis client is a client of the service."""
