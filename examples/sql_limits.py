"""Limits in a SQL database, which keeps them when every program has ended.

    pip install '.[sqlite]'        # or [mysql], [postgres]
    python examples/sql_limits.py
    CRESTGATE_STORE=postgresql://user:password@host/database python examples/sql_limits.py

Without CRESTGATE_STORE the database is a file in a temporary folder.
"""

import os
import tempfile

from crestgate import Limiter

PLANS = {"uploads": "10/hour", "daily": "50/day using sliding_window_log"}

with tempfile.TemporaryDirectory() as folder:
    store = os.environ.get("CRESTGATE_STORE", f"sqlite:///{folder}/counters.db")

    with Limiter(store, plans=PLANS) as limiter:  # makes the tables, if there are none
        limiter.reset("user:42", ["uploads", "daily"])  # so that every run prints the same
        decision = limiter.check("user:42", ["uploads", "daily"], cost=4)
        print([(part.name, part.remaining) for part in decision.parts])

    with Limiter(store, plans=PLANS) as limiter:  # the next start: the counters are where they were
        decision = limiter.check("user:42", ["uploads", "daily"], cost=7)
        print(f"allowed={decision.allowed} by {decision.name}, {decision.remaining} left")
        print([(part.name, part.remaining) for part in limiter.peek("user:42", ["uploads", "daily"]).parts])
