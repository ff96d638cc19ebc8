"""A client of the soak: it checks a changing crowd of keys, and samples itself. `python -m chaos.soak_client`."""

from __future__ import annotations

import faulthandler
import gc
import json
import random
import sys
import threading
import time

from chaos.load import counts
from chaos.virtual_day import resident_bytes
from crestgate import Limiter

ALGORITHMS = ("token_bucket", "leaky_bucket", "gcra", "fixed_window", "sliding_window_log", "sliding_window_counter")
SUBJECTS = 3000
"""New ones every minute, so that all of them expire."""
PAUSE = 0.004
SAMPLES = 40


def main() -> None:
    task = json.loads(sys.argv[1])
    seconds = float(task["seconds"])
    faulthandler.dump_traceback_later(seconds * 2 + 120, exit=True)
    samples = []
    ending = time.monotonic() + seconds
    with Limiter(task["url"]) as limiter:

        def work(number: int) -> None:
            rng = random.Random(f"{task['seed']} {number}")
            while time.monotonic() < ending:
                minute = int(time.monotonic() / 60)
                key = f"{minute}:{rng.randrange(SUBJECTS)}"
                algorithm = rng.choice(ALGORITHMS)
                if rng.random() < 0.1:
                    limiter.check_many([(f"{key}:{item}", f"5/second using {algorithm}") for item in range(5)])
                else:
                    limiter.check(key, [f"5/second using {algorithm}", "20/10 seconds using fixed_window"])
                time.sleep(2 * PAUSE * rng.random())

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(SAMPLES):
            time.sleep(seconds / SAMPLES)
            gc.collect()
            samples.append({**counts(), "bytes": resident_bytes(), "failures": limiter.store_failures})
        for thread in threads:
            thread.join(30)
    sys.stdout.write(json.dumps(samples) + "\n")


if __name__ == "__main__":
    main()
