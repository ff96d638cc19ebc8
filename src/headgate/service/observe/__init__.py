"""What a worker tells about itself: metrics, usage for the history, logs, traces and pressure events."""
