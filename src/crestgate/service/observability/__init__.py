"""Metrics, usage history, logs, traces, pressure events and health of a worker."""
