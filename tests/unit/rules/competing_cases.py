"""Cases on the rules that apply together: which of them win, in which order, with which counters."""

from __future__ import annotations

from unit.rules.cases import Case, cases_of

__all__ = ["COMPETING"]

SPECIFIC = """
    everybody    user
    gold         user          tier=gold
    alice        user for=alice
    alice-gold   user for=alice tier=gold
"""

COMPETING: list[Case] = [
    *cases_of(
        "Rules of one slot compete, and the most specific wins: exact identifier, then tier, then `*`.",
        Case("`*` alone", SPECIFIC, "user=bob", "everybody user:bob rule|user|*|60|*"),
        Case("a tier over `*`", SPECIFIC, "user=bob tier=gold", "gold user:bob rule|user|*|60|*"),
        Case("an identifier over `*`", SPECIFIC, "user=alice", "alice user:alice rule|user|*|60|*"),
        Case(
            "an identifier over a tier",
            "gold user tier=gold\nalice user for=alice",
            "user=alice tier=gold",
            "alice user:alice rule|user|*|60|*",
        ),
        Case("both over one", SPECIFIC, "user=alice tier=gold", "alice-gold user:alice rule|user|*|60|*"),
        Case(
            "in whatever order they are written",
            "alice user for=alice\neverybody user",
            "user=alice",
            "alice user:alice rule|user|*|60|*",
        ),
        Case(
            "two spellings of one pattern are one slot",
            "a user on=/u/*/o\nb user for=1 on=/u/{id}/o/",
            "user=1 path=/u/7/o",
            "b user:1 rule|user|*|60|/u/{}/o",
        ),
        Case(
            "two spellings of one window are one slot",
            "a user 60s\nb user for=1 60.0s",
            "user=1",
            "b user:1 rule|user|*|60|*",
        ),
        Case(
            "addresses compete by their network",
            "a ip\nb ip for=2001:db8::7",
            "ip=2001:db8::8",
            "b ip:2001:db8::/64 rule|ip|*|60|*",
        ),
        Case(
            "tiers compete in `api` too",
            "a api on=/o\nb api on=/o tier=gold",
            "path=/o tier=gold",
            "b api:/o rule|api|*|60|/o",
        ),
    ),
    *cases_of(
        "A slot is dimension, endpoint_pattern, method, window_seconds: what differs in one of them does not compete.",
        Case(
            "another window",
            "a user 60s\nb user for=1 1s",
            "user=1",
            "b user:1 rule|user|*|1|*\na user:1 rule|user|*|60|*",
        ),
        Case(
            "another pattern",
            "a user\nb user for=1 on=/o",
            "user=1 path=/o",
            "a user:1 rule|user|*|60|*\nb user:1 rule|user|*|60|/o",
        ),
        Case(
            "another method",
            "a user\nb user for=1 method=PUT",
            "user=1 method=PUT",
            "a user:1 rule|user|*|60|*\nb user:1 rule|user|PUT|60|*",
        ),
        Case(
            "another dimension",
            "a user\nb ip for=10.0.0.1",
            "user=1 ip=10.0.0.1",
            "a user:1 rule|user|*|60|*\nb ip:10.0.0.1 rule|ip|*|60|*",
        ),
        Case(
            "`*` and `/*` are two patterns",
            "a user\nb user for=1 on=/*",
            "user=1 path=/o",
            "a user:1 rule|user|*|60|*\nb user:1 rule|user|*|60|/*",
        ),
        Case(
            "windows are ordered as numbers",
            "a user 100s\nb user 9s\nc user 0.5s",
            "user=1",
            "c user:1 rule|user|*|0.5|*\nb user:1 rule|user|*|9|*\na user:1 rule|user|*|100|*",
        ),
    ),
    *cases_of(
        "Of two equally specific rules, the one with expires_at wins while it lasts.",
        Case("while it lasts", "a user for=1\nb user for=1 ends=+1", "user=1", "b user:1 rule|user|*|60|*"),
        Case(
            "also when it was there first", "b user for=1 ends=+1\na user for=1", "user=1", "b user:1 rule|user|*|60|*"
        ),
        Case("and no longer", "a user for=1\nb user for=1 ends=+0", "user=1", "a user:1 rule|user|*|60|*"),
        Case("of two for all users", "a user\nb user ends=+1", "user=1", "b user:1 rule|user|*|60|*"),
        Case("of two for a tier", "a user tier=free\nb user tier=free ends=+1", "user=1", "b user:1 rule|user|*|60|*"),
        Case("but not over a more specific one", "a user for=1\nb user ends=+1", "user=1", "a user:1 rule|user|*|60|*"),
        Case(
            "a tier's end does not beat an identifier",
            "a user for=1\nb user tier=free ends=+1",
            "user=1",
            "a user:1 rule|user|*|60|*",
        ),
    ),
    *cases_of(
        "Shadow rules resolve apart, have counters of their own, and never displace.",
        Case(
            "a counter of its own, and last",
            "s user shadow\na ip",
            "user=1 ip=10.0.0.1",
            "a ip:10.0.0.1 rule|ip|*|60|*\ns user:1 shadow|user|*|60|*",
        ),
        Case(
            "beside the rule of its slot",
            "a user\ns user shadow",
            "user=1",
            "a user:1 rule|user|*|60|*\ns user:1 shadow|user|*|60|*",
        ),
        Case(
            "displaces none, however specific",
            "a user\ns user for=1 tier=free shadow",
            "user=1",
            "a user:1 rule|user|*|60|*\ns user:1 shadow|user|*|60|*",
        ),
        Case(
            "is displaced by none",
            "a user for=1\ns user shadow",
            "user=1",
            "a user:1 rule|user|*|60|*\ns user:1 shadow|user|*|60|*",
        ),
        Case(
            "shadows compete among themselves",
            "s user shadow\nt user for=1 shadow",
            "user=1",
            "t user:1 shadow|user|*|60|*",
        ),
        Case(
            "several shadows in the order of the chain",
            "g global shadow\ns user shadow",
            "user=1",
            "s user:1 shadow|user|*|60|*\ng global shadow|global|*|60|*",
        ),
        Case(
            "does not displace the default policy",
            "s key for=k shadow",
            "key=k",
            "default-policy key:k rule|key|*|1|*\ns key:k shadow|key|*|60|*",
        ),
        Case(
            "does not displace the default limits of clients",
            "s client for=acme shadow",
            "client=acme",
            "default-client-limits client:acme rule|client|*|60|*\ns client:acme shadow|client|*|60|*",
        ),
        Case("ends too", "s user shadow ends=-1", "user=1", ""),
    ),
    *cases_of(
        "Dimension `api`: one counter per matched pattern, shared by all callers; per normalised path when it is `*`.",
        Case("per pattern", "a api on=/o/*", "path=/o/7 user=1", "a api:/o/* rule|api|*|60|/o/*"),
        Case(
            "the same for another path and caller", "a api on=/o/*", "path=/o/8 user=2", "a api:/o/* rule|api|*|60|/o/*"
        ),
        Case(
            "each matched pattern has its own",
            "a api on=/o/*\nb api on=/o/{id}",
            "path=/o/7",
            "a api:/o/* rule|api|*|60|/o/*\nb api:/o/{} rule|api|*|60|/o/{}",
        ),
        Case("per path under `*`", "a api", "path=/o/7", "a api:/o/7 rule|api|*|60|*"),
        Case("per name under `*`", "a api", "path=getUsers", "a api:getUsers rule|api|*|60|*"),
        Case("under `/*` the pattern counts, not the path", "a api on=/*", "path=/o/7", "a api:/* rule|api|*|60|/*"),
    ),
    *cases_of(
        "Counters belong to the slot and the subject, not to the rule: a new tier or an override keeps what was used.",
        Case("free", "f user tier=free\ng user tier=gold", "user=1", "f user:1 rule|user|*|60|*"),
        Case(
            "gold counts where free did",
            "f user tier=free\ng user tier=gold",
            "user=1",
            "g user:1 rule|user|*|60|*",
            {"1": "gold"},
        ),
        Case(
            "and so does an override", "f user tier=free\no user for=1 ends=+9", "user=1", "o user:1 rule|user|*|60|*"
        ),
    ),
    *cases_of(
        "All winners are checked as one chain.",
        Case("no rule, no chain", "a user for=1", "user=2", ""),
        Case("one", "a user\nb ip", "user=2", "a user:2 rule|user|*|60|*"),
        Case(
            "by dimension, then pattern, method and window",
            """
            w user on=/o method=GET 3600s
            v user on=/o method=GET 1s
            x user on=/o 60s
            y user 60s
            z ip on=/o
            """,
            "user=1 ip=10.0.0.1 path=/o method=GET",
            """
            y user:1      rule|user|*|60|*
            x user:1      rule|user|*|60|/o
            v user:1      rule|user|GET|1|/o
            w user:1      rule|user|GET|3600|/o
            z ip:10.0.0.1 rule|ip|*|60|/o
            """,
        ),
    ),
]
