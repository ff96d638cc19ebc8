"""Crestgate measured beside its peers, on one machine and in one run. Start it with `python benchmarks/run.py`."""
