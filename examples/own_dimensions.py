"""Dimensions of your own: a request has attributes, and rules count by them, alone or together.

    pip install '.[config]'
    python examples/own_dimensions.py

The rules are own_dimensions.yaml in this folder: a budget for each organisation, one for each organisation and model,
and a ceiling for one model, which no response header shows.
"""

from pathlib import Path

from crestgate import Limiter, RequestContext
from crestgate.http.header_options import HeaderStyle
from crestgate.http.headers import rate_limit_headers
from crestgate.testing import FakeClock

CONFIG = Path(__file__).with_name("own_dimensions.yaml")


def complete(limiter: Limiter, org: str, model: str, tokens: int) -> None:
    decision = limiter.check_request(RequestContext(attributes={"org": org, "model": model}), cost=tokens)
    left = ", ".join(f"{part.name} {part.remaining}" for part in decision.parts)
    print(f"{org}, {model}: {'allowed' if decision else f'denied by {decision.name}'}; left: {left}")
    shown = [name.decode() for name, value in rate_limit_headers(decision, HeaderStyle(), 0) if b"ceiling" in value]
    assert not shown


with Limiter.from_config(CONFIG, environ={}, clock=FakeClock(1_700_000_000)) as limiter:
    complete(limiter, "umbrella", "small", 60)
    complete(limiter, "umbrella", "small", 60)  # 100 for each organisation and model
    complete(limiter, "umbrella", "large", 80)
    complete(limiter, "acme", "small", 400)  # this organisation has 500
    complete(limiter, "acme", "large", 45)  # but 50 of this model, of which 120 are there for all
    print(limiter.check_request(RequestContext(user="bob")).reason)  # without attributes no rule applies
