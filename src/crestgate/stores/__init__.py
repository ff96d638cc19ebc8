"""Where counters live. `port` says what a store promises; `factory` opens one by its URL."""
