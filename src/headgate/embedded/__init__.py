"""The limiters that know rules: the whole rule engine inside a program, on any store, without a service."""
