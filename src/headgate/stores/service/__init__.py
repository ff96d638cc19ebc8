"""A Headgate service as a store: its counters, its plans and its rules, over HTTP."""
