"""Move counters from one store to another, with what they have used.

    pip install '.[redis,mysql]'
    FROM=mysql://user:password@localhost/limits TO=redis://localhost:6379/0 python examples/migration.py

Without FROM and TO, two SQLite files stand for two servers.
"""

import os
import tempfile

from crestgate import Limiter, Migration

folder = tempfile.mkdtemp()
OLD = os.environ.get("FROM", f"sqlite:///{folder}/old.db?timeout_ms=5000")
NEW = os.environ.get("TO", f"sqlite:///{folder}/new.db?timeout_ms=5000")

with Limiter(OLD) as before:
    print(before.check("user:42", "10/hour", cost=7).remaining, "left in the old store")

with Limiter(Migration(OLD, NEW, percent=100)) as limiter:
    print(limiter.check("user:42", "10/hour", cost=2).remaining, "left in the new store")
    print(limiter.store_counts["migrate_carried"], "counter carried")
    limiter.reset("user:42", "10/hour")  # so that the next run prints the same
