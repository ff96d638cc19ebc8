"""Where counters live. `port` says what a store promises; `url` opens one by its URL."""
