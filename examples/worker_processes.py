"""Four worker processes share one counter file: together they admit exactly what the limit says."""

import multiprocessing
import tempfile
from multiprocessing.synchronize import Barrier

from crestgate import Limiter

WORKERS = 4
CALLS = 100


def work(url: str, start: Barrier, results: "multiprocessing.Queue[int]") -> None:
    with Limiter(url) as limiter:  # each process opens the store itself; the file is what they share
        start.wait()
        results.put(sum(limiter.check("api", "50/hour").allowed for _ in range(CALLS)))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"shared://{folder}/counters"
        start = multiprocessing.Barrier(WORKERS)
        results: multiprocessing.Queue[int] = multiprocessing.Queue()
        workers = [multiprocessing.Process(target=work, args=(url, start, results)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        admitted = [results.get(timeout=60) for _ in workers]
        for worker in workers:
            worker.join()
    print(f"admitted in all: {sum(admitted)} of {WORKERS * CALLS}")


if __name__ == "__main__":
    main()
