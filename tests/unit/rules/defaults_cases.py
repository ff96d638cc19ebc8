"""Cases on clients and keys, and on the defaults of unconfigured ones."""

from __future__ import annotations

from unit.rules.cases import Case, cases_of

__all__ = ["DEFAULTS"]

DEFAULTS: list[Case] = [
    *cases_of(
        "Clients: rules of dimension `client`, and all that match apply.",
        Case(
            "for all it does, for one API, for one method",
            """
            d client for=acme
            a client for=acme on=getUsers 1s
            m client for=acme method=PUT
            """,
            "client=acme path=getUsers method=PUT",
            """
            d client:acme rule|client|*|60|*
            m client:acme rule|client|PUT|60|*
            a client:acme rule|client|*|1|getUsers
            """,
        ),
        Case(
            "one that is configured has no default limits, even where no limit of its own matches",
            "m client for=acme method=PUT",
            "client=acme method=GET",
            "",
        ),
    ),
    *cases_of(
        "An unknown client gets the configured default limits at its first request.",
        Case("unknown", "a user", "client=new", "default-client-limits client:new rule|client|*|60|*"),
        Case(
            "another client is configured",
            "a client for=acme",
            "client=new",
            "default-client-limits client:new rule|client|*|60|*",
        ),
        Case("a rule for all clients has their slot", "a client", "client=new", "a client:new rule|client|*|60|*"),
        Case(
            "a rule for all clients in another slot joins them",
            "a client 1s",
            "client=new",
            "a client:new rule|client|*|1|*\ndefault-client-limits client:new rule|client|*|60|*",
        ),
        Case(
            "a disabled rule configures no client",
            "a client for=acme disabled",
            "client=acme",
            "default-client-limits client:acme rule|client|*|60|*",
        ),
        Case(
            "an expired rule configures no client",
            "a client for=acme ends=-1",
            "client=acme",
            "default-client-limits client:acme rule|client|*|60|*",
        ),
        Case(
            "a rule that has not ended does",
            "a client for=acme 1s ends=+1",
            "client=acme",
            "a client:acme rule|client|*|1|*",
        ),
    ),
    *cases_of(
        "Policies: a rule of dimension `key`. A key without a policy gets the default policy.",
        Case("without", "a user", "key=job", "default-policy key:job rule|key|*|1|*"),
        Case("with", "p key for=job 60s", "key=job", "p key:job rule|key|*|60|*"),
        Case("of another key", "p key for=job 60s", "key=other", "default-policy key:other rule|key|*|1|*"),
        Case("a rule for all keys is a policy of each", "p key 60s", "key=other", "p key:other rule|key|*|60|*"),
        Case(
            "one that is disabled is none", "p key for=job disabled", "key=job", "default-policy key:job rule|key|*|1|*"
        ),
    ),
    *cases_of(
        "policy_key: joined in the fixed order user, apikey, client, ip, route; adds that key's policy to the chain.",
        Case("off by default", "a user", "user=123 path=/v1/pay", "a user:123 rule|user|*|60|*"),
        Case("ip", "a user", "ip=10.0.0.1", "default-policy key:ip:10.0.0.1 rule|key|*|1|*", policy_key=("ip",)),
        Case(
            "user and route",
            "p key for=user:123|route:/v1/pay",
            "user=123 path=/v1//pay/",
            "p key:user:123|route:/v1/pay rule|key|*|60|*",
            policy_key=("user", "route"),
        ),
        Case(
            "in the fixed order, however it is written",
            "p key",
            "user=1 api_key=k client=c ip=10.0.0.1 path=/x",
            """
            default-client-limits client:c rule|client|*|60|*
            p key:user:1|apikey:k|client:c|ip:10.0.0.1|route:/x rule|key|*|60|*
            """,
            policy_key=("route", "ip", "client", "apikey", "user"),
        ),
        Case(
            "missing values are left out",
            "p key",
            "path=/x",
            "p key:route:/x rule|key|*|60|*",
            policy_key=("user", "route"),
        ),
        Case("without values there is no key", "p key", "api_key=k", "", policy_key=("user", "route")),
        Case(
            "a key that the request names comes before",
            "p key",
            "user=1 key=mine",
            "p key:mine rule|key|*|60|*",
            policy_key=("user",),
        ),
        Case(
            "adds to the chain",
            "a user\np key",
            "user=1",
            "a user:1 rule|user|*|60|*\np key:user:1 rule|key|*|60|*",
            policy_key=("user",),
        ),
        Case(
            "different requests never make one key (a user id that looks like a route)",
            "p key",
            "user=a|route:/x path=/y",
            "p key:user:a%7Croute:/x|route:/y rule|key|*|60|*",
            policy_key=("user", "route"),
        ),
        Case(
            "different requests never make one key (a user id that looks like an escape)",
            "p key",
            "user=a%7Cb path=/y",
            "p key:user:a%257Cb|route:/y rule|key|*|60|*",
            policy_key=("user", "route"),
        ),
        Case(
            "a key of one part has nothing to be taken apart",
            "p key",
            "user=50%|x",
            "p key:user:50%|x rule|key|*|60|*",
            policy_key=("user",),
        ),
        Case(
            "different requests never make one key (a path that spells one)",
            "p key",
            "user=a path=/x|route:/y",
            "p key:user:a|route:/x%7Croute:/y rule|key|*|60|*",
            policy_key=("user", "route"),
        ),
    ),
]
