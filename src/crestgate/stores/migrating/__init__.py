"""Moves counters from one store to another, a share of the subjects at a time: see docs/migration.md."""
