"""The limit and counter that match a request: the reference's documented cases in our own files (`documented/`),
and edge cases.

A request is written as its domain and its entries: `mail kind=advert recipient=ann`. It matches a limit, the key of a
counter, and the label of its metrics where that differs from the limit's own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from crestgate.core.limit import Limit
from crestgate.envoy.files import read_descriptor_files
from crestgate.envoy.matcher import Domains, Match

FOLDER = Path(__file__).parent / "documented"


@pytest.fixture(scope="module")
def domains() -> Domains:
    files = read_descriptor_files(str(FOLDER))
    assert files.problems == []
    return files.domains


def match(domains: Domains, request: str) -> Match | None:
    domain, *entries = request.split(" ")
    pairs = [entry.partition("=") for entry in entries if entry]
    return domains.match(domain, [(key, value) for key, _, value in pairs])


ROWS: list[tuple[str, str, str]] = [
    # (request, limit and its label, key of the counter)
    # Two values of one key
    ("databases database=accounts", "400/second databases.database_accounts", "databases|database=accounts"),
    ("databases database=fallback", "40/second databases.database_fallback", "databases|database=fallback"),
    # Nested, and any value
    ("mail kind=advert recipient=ann", "3/day mail.kind_advert.recipient", "mail|kind=advert|recipient=ann"),
    ("mail kind=advert recipient=bob", "3/day mail.kind_advert.recipient", "mail|kind=advert|recipient=bob"),
    ("mail recipient=ann", "90/day mail.recipient", "mail|recipient=ann"),
    ("mail recipient=", "90/day mail.recipient", "mail|recipient="),
    # Exact values take precedence
    ("edge address=192.0.2.1", "12/second edge.address", "edge|address=192.0.2.1"),
    ("edge address=192.0.2.5", "0/second edge.address_192.0.2.5", "edge|address=192.0.2.5"),
    ("edge address=192.0.2.55", "12/second edge.address", "edge|address=192.0.2.55"),
    # As deep as the request
    ("depth flat=one", "300/second depth.flat_one", "depth|flat=one"),
    ("depth deep=one under=x", "301/second depth.deep_one.under", "depth|deep=one|under=x"),
    ("depth both=x", "302/minute depth.both", "depth|both=x"),
    ("depth both=x under=y", "303/minute depth.both.under", "depth|both=x|under=y"),
    # Unlimited
    ("unlimited directory=x", "unlimited unlimited.directory", "unlimited|directory=x"),
    ("unlimited cloud=x", "100/minute unlimited.cloud", "unlimited|cloud=x"),
    # Shadow mode
    ("shadow service=auth user=ann", "10/second shadow.service.user_ann", "shadow|service=auth|user=ann"),
    ("shadow service=auth user=bob", "20/second shadow.service.user_bob", "shadow|service=auth|user=bob"),
    # Replacing
    ("replaces verb=read user=ann", "5/second replaces.verb_read.user_ann", "replaces|verb=read|user=ann"),
    ("replaces endpoint=search user=ann", "10/second replaces.endpoint_search.user_ann",
     "replaces|endpoint=search|user=ann"),
    # Detailed metrics: the counter is what it would be without
    ("detailed tenant=acme", "20/minute detailed.tenant_acme", "detailed|tenant=acme"),
    ("detailed tenant=other", "10/minute detailed.tenant", "detailed|tenant=other"),
    ("detailed plan=gold seat=1", "31/minute detailed.plan.seat", "detailed|plan=gold|seat=1"),
    ("detailed plan=gold desk=front", "33/minute detailed.plan.desk_front", "detailed|plan=gold|desk=front"),
    # Wildcards
    ("wildcards end=build1", "1/minute wildcards.end_build*", "wildcards|end=build1"),
    ("wildcards end=build", "1/minute wildcards.end_build*", "wildcards|end=build"),
    ("wildcards end=buildXYZ", "1/minute wildcards.end_build*", "wildcards|end=buildXYZ"),
    ("wildcards end=build*", "1/minute wildcards.end_build*", "wildcards|end=build*"),
    ("wildcards middle=/v1/12/close", "2/minute wildcards.middle_/v1/*/close", "wildcards|middle=/v1/12/close"),
    ("wildcards middle=/v1/a/b/close", "2/minute wildcards.middle_/v1/*/close", "wildcards|middle=/v1/a/b/close"),
    ("wildcards middle=/v1//close", "2/minute wildcards.middle_/v1/*/close", "wildcards|middle=/v1//close"),
    ("wildcards several=/v1/ann/orders/7/close", "3/minute wildcards.several_/v1/*/orders/*/close",
     "wildcards|several=/v1/ann/orders/7/close"),
    ("wildcards begin=a.example.org", "4/minute wildcards.begin_*.example.org", "wildcards|begin=a.example.org"),
    ("wildcards begin=.example.org", "4/minute wildcards.begin_*.example.org", "wildcards|begin=.example.org"),
    ("wildcards overlap=abba", "5/minute wildcards.overlap_ab*ba", "wildcards|overlap=abba"),
    ("wildcards overlap=abxba", "5/minute wildcards.overlap_ab*ba", "wildcards|overlap=abxba"),
    ("wildcards order=abx", "6/minute wildcards.order_a*", "wildcards|order=abx"),  # the first in the file
    ("wildcards order=ab*", "7/minute wildcards.order_ab*", "wildcards|order=ab*"),  # an exact value
    ("wildcards order=abc", "8/minute wildcards.order_abc", "wildcards|order=abc"),
    ("wildcards order=b", "9/minute wildcards.order", "wildcards|order=b"),
    ("wildcards order=", "9/minute wildcards.order", "wildcards|order="),
    ("wildcards any=x", "10/minute wildcards.any_*", "wildcards|any=x"),
    ("wildcards any=", "10/minute wildcards.any_*", "wildcards|any="),
    ("wildcards stars=xy", "11/minute wildcards.stars_x**y", "wildcards|stars=xy"),
    ("wildcards stars=x-y", "11/minute wildcards.stars_x**y", "wildcards|stars=x-y"),
    ("wildcards plain=build", "12/minute wildcards.plain_build", "wildcards|plain=build"),
    ("wildcards nested=one end=ship2", "13/minute wildcards.nested_one.end_ship*", "wildcards|nested=one|end=ship2"),
    ("wildcards twice=aaaa", "14/minute wildcards.twice_aa*aa*", "wildcards|twice=aaaa"),
    # Values in metrics: the counter and the limit's own label are what they would be without
    ("values route=api method=GET subject=7", "60/minute values.route.method.subject",
     "values|route=api|method=GET|subject=7"),
    ("values user=ann action=readme resource=r", "100/minute values.user.action_read*.resource",
     "values|user=ann|action=readme|resource=r"),
    ("values user=ann action=write", "10/minute values.user.action_write", "values|user=ann|action=write"),
    # Values that share a counter
    ("shared files=files/a.pdf", "10/hour shared.files_files/*", "shared|files~files/*"),
    ("shared files=files/b.csv", "10/hour shared.files_files/*", "shared|files~files/*"),
    ("shared files=files/", "10/hour shared.files_files/*", "shared|files~files/*"),
    ("shared files=files/*", "10/hour shared.files_files/*", "shared|files~files/*"),
    ("shared apart=apart/a", "11/hour shared.apart_apart/*", "shared|apart=apart/a"),
    ("shared apart=apart/*", "11/hour shared.apart_apart/*", "shared|apart=apart/*"),
    ("shared route=api/v1 method=GET", "60/minute shared.route_api/*.method", "shared|route~api/*|method=GET"),
    ("shared route=api/v2 method=GET", "60/minute shared.route_api/*.method", "shared|route~api/*|method=GET"),
    ("shared service=svc/a endpoint=get", "80/minute shared.service_svc/*.endpoint",
     "shared|service~svc/*|endpoint=get"),
    ("shared tree=tree/1 tree=leaf/2", "30/minute shared.tree_tree/*.tree_leaf/*", "shared|tree~tree/*|tree~leaf/*"),
    ("shared tree=tree/1 leaf=leaf/2 kind=k", "31/minute shared.tree_tree/*.leaf_leaf/*.kind",
     "shared|tree~tree/*|leaf=leaf/2|kind=k"),
    ("shared lone=lone1", "50/minute shared.lone_lone1", "shared|lone=lone1"),
    ("shared lone=lone2", "51/minute shared.lone_lone*", "shared|lone~lone*"),
    ("shared middle=/api/x/v1", "52/minute shared.middle_/api*v1", "shared|middle~/api*v1"),
    ("shared lone=other-lone lone=lone*", "53/minute shared.lone_other-lone.lone_lone*",
     "shared|lone=other-lone|lone=lone*"),
    # A larger file
    ("gateway class=billing", "4/minute gateway.class_billing", "gateway|class=billing"),
    ("gateway from=front to=reports", "2/minute gateway.from_front.to_reports", "gateway|from=front|to=reports"),
    ("gateway from=front to=stub", "1/minute gateway.from_front.to_stub", "gateway|from=front|to=stub"),
    ("gateway from=front to=nobody", "2/minute gateway.from_front.to_nobody", "gateway|from=front|to=nobody"),
    ("gateway job=1", "2/minute gateway.job", "gateway|job=1"),
    ("gateway job=1 step=x", "3/minute gateway.job.step", "gateway|job=1|step=x"),
    ("gateway job=1 step=reports", "1/minute gateway.job.step_reports", "gateway|job=1|step=reports"),
    ("gateway job=1 step=closed", "0/minute gateway.job.step_closed", "gateway|job=1|step=closed"),
    ("gateway job=1 task=x", "1/second gateway.job.task", "gateway|job=1|task=x"),
    ("gateway job=1 task=doubtful", "3/minute gateway.job.task_doubtful", "gateway|job=1|task=doubtful"),
    ("gateway job=1 free=x", "unlimited gateway.job.free", "gateway|job=1|free=x"),
    ("gateway open=x", "unlimited gateway.open", "gateway|open=x"),
    ("gateway supplier=first", "1/minute gateway.supplier_first", "gateway|supplier=first"),
    # Pairs are compared, not their joined text
    ("odd a_b=c", "1/hour odd.a_b_c", "odd|a_b=c"),
    ("odd a=b_c", "2/hour odd.a_b_c", "odd|a=b_c"),
    # Values that YAML would convert are the text as written
    ("odd number=5", "3/hour odd.number_5", "odd|number=5"),
    ("odd number=1.10", "4/hour odd.number_1.10", "odd|number=1.10"),
    ("odd number=007", "5/hour odd.number_007", "odd|number=007"),
    ("odd flag=True", "6/hour odd.flag_True", "odd|flag=True"),
    ("odd flag=no", "7/hour odd.flag_no", "odd|flag=no"),
    ("odd 404=x", "8/hour odd.404", "odd|404=x"),
    ("odd empty=x", "9/hour odd.empty", "odd|empty=x"),  # an empty value is none
    ("odd Case=Upper", "10/hour odd.Case_Upper", "odd|Case=Upper"),
    ("odd dot.ted=do.t", "13/hour odd.dot.ted_do.t", "odd|dot.ted=do.t"),
    ("odd später=müde", "14/hour odd.später_müde", "odd|später=müde"),
    # Matching does not backtrack to another choice on a level
    ("odd greedy=yes one=x", "15/hour odd.greedy_yes.one", "odd|greedy=yes|one=x"),
    ("odd greedy=yet two=x", "16/hour odd.greedy_y*.two", "odd|greedy=yet|two=x"),
    ("odd greedy=no three=x", "17/hour odd.greedy.three", "odd|greedy=no|three=x"),
    ("odd same=a same=b same=c", "18/hour odd.same.same.same", "odd|same=a|same=b|same=c"),
    ("odd words=x", "19/hour odd.words", "odd|words=x"),
    # What Crestgate adds
    ("ours unit=second", "1/second ours.unit_second", "ours|unit=second"),
    ("ours unit=week", "2/week ours.unit_week", "ours|unit=week"),
    ("ours unit=month", "3/month ours.unit_month", "ours|unit=month"),
    ("ours unit=year", "4294967295/year ours.unit_year", "ours|unit=year"),
    ("ours several=five", "5/5minutes ours.several_five", "ours|several=five"),
    ("ours several=sixty", "6/minute ours.several_sixty", "ours|several=sixty"),
    ("ours several=seven", "7/week ours.several_seven", "ours|several=seven"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "limit", "key"), ROWS, ids=[row[0] for row in ROWS])
def test_request_matches_limit(domains: Domains, request_: str, limit: str, key: str) -> None:
    found = match(domains, request_)
    assert found is not None
    notation, label = limit.split(" ", 1)
    assert (found.limit.label, found.key) == (label, key)
    if notation == "unlimited":
        assert (found.limit.algorithm, found.limit.requests_per_unit, found.limit.unit) == (None, 0, 0)
        return
    algorithm = found.limit.algorithm
    assert algorithm is not None
    expected = Limit.parse(f"{notation} using fixed_window")
    assert algorithm.limit == expected
    assert (algorithm.name, algorithm.label) == (f"envoy:{expected.period_us // 1_000_000}", label)
    assert found.limit.requests_per_unit == expected.count


NOTHING = [
    *("nowhere database=accounts", "Databases database=accounts"),  # no such domain
    *("databases", "databases database=other", "databases database=", "databases other=accounts"),
    *("mail kind=advert", "mail kind=other recipient=ann", "mail recipient=ann kind=advert", "mail recipient=a more=b"),
    *("depth flat=one under=x", "depth deep=one", "depth deep=two under=x", "depth deep=one under=x more=y"),
    *("depth both=x none=y", "depth let_in=x", "depth let_in=x under=y", "depth under=x"),  # without a limit
    *("shadow service=auth", "shadow service=auth user=eve", "shadow user=ann"),
    *("wildcards end=buil", "wildcards end=abuild", "wildcards plain=build1", "wildcards end=Build1"),
    *("wildcards middle=/v1/close", "wildcards middle=/v1/12/open", "wildcards middle=x/v1/12/close"),
    *("wildcards several=/v1/ann/orders/close", "wildcards several=/v1/ann/close", "wildcards begin=example.org"),
    *("wildcards overlap=aba", "wildcards overlap=abab", "wildcards stars=x", "wildcards nested=one end=build1"),
    *("wildcards twice=aaa", "wildcards nested=two end=ship"),
    *("values route=api method=GET", "values user=ann action=delete resource=r"),
    *("shared files=file", "shared route=api/v1", "shared tree=tree/1 leaf=leaf/2"),
    *("gateway from=front", "gateway from=back to=stub", "gateway supplier=third", "gateway job=1 other=x"),
    *("odd a_b=x", "odd a=c", "odd number=1.1", "odd number=7", "odd flag=true", "odd case=Upper", "odd Case=upper"),
    *("odd greedy=yes two=x", "odd greedy=yes three=x", "odd greedy=yet one=x", "odd greedy=no two=x"),
    *("odd same=a same=b", "odd same=a same=b same=c same=d", "odd nothing=x"),
]  # fmt: skip


@pytest.mark.parametrize("request_", NOTHING)
def test_request_matches_no_limit(domains: Domains, request_: str) -> None:
    assert match(domains, request_) is None


LABELS = [
    ("mail recipient=ann", "mail.recipient"),
    ("detailed tenant=acme", "detailed.tenant_acme"),
    ("detailed tenant=other", "detailed.tenant_other"),
    ("detailed tenant=", "detailed.tenant"),
    ("detailed plan=gold", "detailed.plan_gold"),
    ("detailed plan=gold seat=1", "detailed.plan.seat"),  # only where the request ends
    ("detailed plan=gold desk=2", "detailed.plan_gold.desk_2"),
    ("detailed plan=gold desk=front", "detailed.plan_gold.desk_front"),
    ("detailed region=eu-1 zone=a", "detailed.region_eu-1.zone_a"),
    ("values route=api method=GET subject=7", "values.route_api.method_GET.subject"),
    ("values route=web method=POST subject=8", "values.route_web.method_POST.subject"),
    ("values route= method=GET subject=7", "values.route.method_GET.subject"),
    ("values user=ann action=readme resource=r", "values.user_ann.action_readme.resource"),
    ("values user=ann action=write", "values.user_ann.action_write"),
    ("values host=web-1 port=80 path=x", "values.host_web-*.port_80.path"),
    ("wildcards end=build1", "wildcards.end_build*"),
    ("shared files=files/a.pdf", "shared.files_files/*"),
    ("shared route=api/v1 method=GET", "shared.route_api/*.method"),
    ("shared service=svc/a endpoint=get", "shared.service_svc/*.endpoint_get"),
    ("shared tree=tree/1 leaf=leaf/2 kind=k", "shared.tree_tree/*.leaf_leaf/*.kind"),
    ("shared lone=lone1", "shared.lone_lone1"),
]


@pytest.mark.parametrize(("request_", "label"), LABELS)
def test_metric_labels(domains: Domains, request_: str, label: str) -> None:
    found = match(domains, request_)
    assert found is not None
    assert found.label == label


def test_label_length_is_bounded(domains: Domains) -> None:
    found = match(domains, f"detailed tenant={'x' * 60_000}")
    assert found is not None
    assert found.label == f"detailed.tenant_{'x' * 184}"
    assert found.limit.label == "detailed.tenant"


def test_other_fields_of_a_limit(domains: Domains) -> None:
    def limit(request: str) -> tuple[str, frozenset[str], bool, bool, object]:
        found = match(domains, request)
        assert found is not None
        one = found.limit
        return one.name, one.replaces, one.shadow, one.quota, one.metadata

    none: frozenset[str] = frozenset()
    assert limit("mail recipient=ann") == ("", none, False, False, None)
    assert limit("shadow service=auth user=ann") == ("", none, True, False, None)
    assert limit("shadow service=auth user=bob") == ("", none, False, False, None)
    assert limit("replaces verb=read user=ann") == ("reads", none, False, False, None)
    assert limit("replaces endpoint=search user=ann") == ("", frozenset({"reads", "others"}), False, False, None)
    assert limit("gateway supplier=first") == (
        *("", none, False, True),
        {"supplier": {"name": "first", "weight": 5}},
    )
    assert limit("odd words=x") == ("", none, True, False, None)  # on and off


UNITS = [
    ("ours unit=second", 1),
    ("unlimited cloud=x", 2),
    ("odd number=5", 3),
    ("mail recipient=x", 4),
    ("ours unit=month", 5),
    ("ours unit=year", 6),
    ("ours unit=week", 7),
    ("ours several=five", 0),  # the protocol has no unit for it
    ("ours several=sixty", 2),
    ("ours several=seven", 7),
]


@pytest.mark.parametrize(("request_", "number"), UNITS)
def test_unit_is_that_of_the_whole_period(domains: Domains, request_: str, number: int) -> None:
    found = match(domains, request_)
    assert found is not None
    assert found.limit.unit == number


ALGORITHMS = [
    ("gcra", Limit(8, 60, burst=3, algorithm="gcra")),
    ("log", Limit(9, 60, algorithm="sliding_window_log")),
    ("bucket", Limit(10, 60, burst=100, algorithm="token_bucket")),
]


@pytest.mark.parametrize(("name", "limit"), ALGORITHMS, ids=[name for name, _ in ALGORITHMS])
def test_other_algorithms_than_the_fixed_window(domains: Domains, name: str, limit: Limit) -> None:
    found = match(domains, f"ours algorithm={name}")
    assert found is not None
    assert found.limit.algorithm is not None
    assert (found.limit.algorithm.limit, found.limit.requests_per_unit) == (limit, limit.count)


def test_domains_are_found_by_exact_name(domains: Domains) -> None:
    assert domains.knows("mail")
    assert not domains.knows("Mail")
    assert not domains.knows("")
    assert domains.counts["mail"] == 2
    assert domains.counts["gateway"] == 14
    assert list(domains.counts) == sorted(path.stem for path in FOLDER.glob("*.yaml"))
