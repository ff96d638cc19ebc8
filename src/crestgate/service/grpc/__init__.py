"""gRPC: a listener of its own on the worker's event loop, and what is answered there."""
