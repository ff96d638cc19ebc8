"""Limiters: checks on a store by limits and plans, waiting, reservations, and the failure policy."""
