"""Limits, algorithms and decisions, as pure functions: no clock, no lock, no I/O.

All other packages may import this one; it imports nothing but the standard library.
"""
