"""gRPC over HTTP/2 for a worker's event loop. It knows frames and calls, and nothing of rate limits."""
