"""The arithmetic of rate limiting: limits, algorithms, decisions. No clock, no lock, no I/O.

Everything else looks down at this package and this package looks at nothing but the standard library.
"""
