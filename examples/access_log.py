"""A small access log, the same at every run: an hour of a shop with some heavy users, and a scraper.

python examples/access_log.py access.log
"""

import random
import sys
import time

START = 1_767_225_600  # 2026-01-01
PATHS = ["/", "/products/7", "/products/8", "/cart", "/api/v1/orders", "/api/v1/orders/1207"]
USERS = [f"user{number}" for number in range(40)]


def access_log(requests: int = 4000) -> list[str]:
    """Lines in the combined format of nginx and Apache."""
    draw = random.Random(2026)
    weights = [1 / (number + 1) for number in range(len(USERS))]
    lines = []
    for number in range(requests):
        if number % 8 == 0:
            address, user, path, method = "203.0.113.66", "-", f"/products/{number % 900}", "GET"
        else:
            user = draw.choices(USERS, weights)[0]
            address, path = f"198.51.100.{USERS.index(user)}", draw.choice(PATHS)
            method = "POST" if path == "/api/v1/orders" else "GET"
        at = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(START + 3600 * number // requests))
        lines.append(f'{address} - {user} [{at}] "{method} {path} HTTP/1.1" 200 512 "-" "example/1.0"')
    return lines


if __name__ == "__main__":
    log = access_log()
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            file.write("\n".join(log) + "\n")
    else:
        print(log[0])
        print(f"{len(log)} lines: name a file to write them to")
