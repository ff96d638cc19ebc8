"""Repositories of rules, tiers and plans: files, SQL databases, Redis. Their guarantees are in port.py."""
