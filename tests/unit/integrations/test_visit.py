"""One request on its way through several layers: counted once, and told of in one set of headers."""

from __future__ import annotations

from typing import Any

from headgate import Limiter
from headgate.http.style import HeaderStyle
from headgate.integrations.gate import Gate
from headgate.integrations.passing import enter
from headgate.integrations.visit import Visit
from unit.integrations.plain import CLIENT, asked, limiter_on


def headers_of(visit: Visit) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in visit.headers(HeaderStyle(), 0)}


def layer(limiter: Limiter, limits: str, **options: Any) -> Gate[Limiter]:
    return Gate(limiter, limits, **options)


def test_a_counter_is_counted_once_for_a_visit() -> None:
    visit = Visit()
    assert visit.count(1, "k", "n")
    assert not visit.count(1, "k", "n")
    assert visit.count(2, "k", "n")
    assert visit.count(1, "other", "n")
    assert visit.count(1, "k", "other")
    assert Visit().count(1, "k", "n")


def test_two_layers_with_one_limit_count_once() -> None:
    limiter = limiter_on()
    outer, inner = layer(limiter, "5/minute"), layer(limiter, "5 per minute")
    visit = Visit()
    assert enter(outer, asked(outer), visit) is not None
    assert enter(inner, asked(inner), visit) is None
    assert limiter.peek(f"ip:{CLIENT}", "5/minute").remaining == 4
    assert headers_of(visit)["ratelimit"] == '"5/minute";r=4;t=12'


def test_limiters_that_share_their_counters_count_once_too() -> None:
    limiter = limiter_on()
    outer, inner = layer(limiter, "5/minute"), layer(Limiter.sharing(limiter), "5/minute")
    visit = Visit()
    assert enter(outer, asked(outer), visit) is not None
    assert enter(inner, asked(inner), visit) is None


def test_limiters_that_share_nothing_both_count() -> None:
    visit = Visit()
    for gate in (layer(limiter_on(), "5/minute"), layer(limiter_on(), "5/minute")):
        passage = enter(gate, asked(gate), visit)
        assert passage is not None
        assert passage.decision.remaining == 4


def test_other_keys_both_count() -> None:
    limiter = limiter_on()
    visit = Visit()
    for gate in (layer(limiter, "5/minute"), layer(limiter, "5/minute", key="route")):
        assert enter(gate, asked(gate), visit) is not None
    assert len(visit.decisions) == 2


def test_of_a_chain_only_what_was_not_counted_is() -> None:
    limiter = limiter_on()
    outer, inner = layer(limiter, "5/minute"), layer(limiter, "5/minute; 9/hour")
    visit = Visit()
    enter(outer, asked(outer), visit)
    passage = enter(inner, asked(inner), visit)
    assert passage is not None
    assert [part.name for part in passage.decision.parts] == ["9/hour"]
    assert limiter.peek(f"ip:{CLIENT}", "5/minute").remaining == 4
    assert limiter.peek(f"ip:{CLIENT}", "9/hour").remaining == 8
    said = headers_of(visit)
    assert said["ratelimit-policy"] == '"5/minute";q=5;w=60, "9/hour";q=9;w=3600'
    assert said["ratelimit"] == '"5/minute";r=4;t=12, "9/hour";r=8;t=400'
    assert (said["x-ratelimit-limit"], said["x-ratelimit-remaining"]) == ("5", "4")


def test_the_headers_tell_of_the_layer_that_denied() -> None:
    limiter = limiter_on()
    outer, inner = layer(limiter, "5/minute"), layer(limiter, "1/hour")
    for _ in range(2):
        visit = Visit()
        enter(outer, asked(outer), visit)
        enter(inner, asked(inner), visit)
    decision = visit.decision()
    assert decision is not None
    assert not decision.allowed
    said = headers_of(visit)
    assert said["ratelimit"] == '"5/minute";r=3;t=24, "1/hour";r=0;t=3600'
    assert (said["x-ratelimit-limit"], said["x-ratelimit-remaining"], said["retry-after"]) == ("1", "0", "3600")
    assert said["x-ratelimit-state"] == "throttled"


def test_a_denial_of_the_applications_own_is_told_once() -> None:
    limiter = limiter_on()
    gate = layer(limiter, "5/minute")
    visit = Visit()
    enter(gate, asked(gate), visit)
    denied = limiter.check("report", "1/hour", cost=2)
    visit.tell(denied)
    visit.tell(denied)
    assert len(visit.decisions) == 2
    assert headers_of(visit)["ratelimit"] == '"5/minute";r=4;t=12, "1/hour";r=1'


def test_a_dry_run_is_nobodys_business() -> None:
    limiter = limiter_on()
    gate = layer(limiter, "1/minute", dry_run=True)
    visits = [Visit(), Visit()]
    for visit in visits:
        enter(gate, asked(gate), visit)
    assert headers_of(visits[0])["ratelimit"] == '"1/minute";r=0;t=60'
    assert headers_of(visits[1]) == {}


def test_nothing_was_said() -> None:
    assert Visit().decision() is None
    assert Visit().headers(HeaderStyle(), 0) == []
