"""The contract on which rules apply, sentence by sentence, as cases. How to read them is said in cases.py."""

from __future__ import annotations

from unit.rules.cases import Case, said

__all__ = ["CASES"]

SPECIFIC = """
    everybody    user
    gold         user          tier=gold
    alice        user for=alice
    alice-gold   user for=alice tier=gold
"""

CASES: list[Case] = [
    *said(
        "The dimensions are user, ip, apikey, client, api, global and key.",
        Case("user", "a user", "user=42", "a user:42 rule|user|*|60|*"),
        Case("ip", "a ip", "ip=10.0.0.1", "a ip:10.0.0.1 rule|ip|*|60|*"),
        Case("apikey", "a apikey", "api_key=sk-1", "a apikey:sk-1 rule|apikey|*|60|*"),
        Case("client", "a client for=acme", "client=acme", "a client:acme rule|client|*|60|*"),
        Case("api", "a api", "path=/orders", "a api:/orders rule|api|*|60|*"),
        Case("global", "a global", "path=/orders", "a global rule|global|*|60|*"),
        Case("key", "a key", "key=job-7", "a key:job-7 rule|key|*|60|*"),
        Case("a dimension in any case", "a USER", "user=42", "a user:42 rule|user|*|60|*"),
        Case("API_KEY is apikey", "a API_KEY", "api_key=sk-1", "a apikey:sk-1 rule|apikey|*|60|*"),
        Case("Api-Key is apikey", "a Api-Key", "api_key=sk-1", "a apikey:sk-1 rule|apikey|*|60|*"),
        Case(
            "all at once, in the order user, apikey, client, ip, key, api, global",
            """
            g global
            a api
            k key
            i ip
            c client for=acme
            s apikey
            u user
            """,
            "user=42 api_key=sk client=acme ip=10.0.0.1 key=job path=/x method=GET",
            """
            u user:42     rule|user|*|60|*
            s apikey:sk   rule|apikey|*|60|*
            c client:acme rule|client|*|60|*
            i ip:10.0.0.1 rule|ip|*|60|*
            k key:job     rule|key|*|60|*
            a api:/x      rule|api|*|60|*
            g global      rule|global|*|60|*
            """,
        ),
    ),
    *said(
        "A rule applies when the dimension's value is present.",
        Case("no user, no rule of users", "a user", "ip=10.0.0.1", ""),
        Case("no address, no rule of addresses", "a ip", "user=42", ""),
        Case("no API key, no rule of API keys", "a apikey", "user=42", ""),
        Case("no client, no rule of clients, nor default limits", "a client", "user=42", ""),
        Case("no key, no rule of keys, nor the default policy", "a key", "user=42", ""),
        Case("no path, no rule of APIs", "a api", "user=42", ""),
        Case("global needs nothing", "a global", "", "a global rule|global|*|60|*"),
        Case("nothing at all under rules of everything", "a user\nb ip\nc api", "", ""),
        Case(
            "an identifier of another dimension is not it",
            "a user for=42",
            "api_key=42 key=user:42",
            "default-policy key:user:42 rule|key|*|1|*",
        ),
    ),
    *said(
        "A rule applies when its identifier is equal or `*`.",
        Case("equal", "a user for=42", "user=42", "a user:42 rule|user|*|60|*"),
        Case("another", "a user for=42", "user=43", ""),
        Case("a longer one", "a user for=42", "user=420", ""),
        Case("upper and lower case differ", "a user for=Bob", "user=bob", ""),
        Case("`*` is everybody, each with a counter", "a user", "user=43", "a user:43 rule|user|*|60|*"),
        Case("who is called `*` is one of everybody", "a user\nb user for=42", "user=*", "a user:* rule|user|*|60|*"),
        Case(
            "an identifier may look like a subject",
            "a user for=user:42",
            "user=user:42",
            "a user:user:42 rule|user|*|60|*",
        ),
        Case(
            "an address is equal in any spelling",
            "a ip for=2001:DB8:0:0::1",
            "ip=2001:db8::1",
            "a ip:2001:db8::/64 rule|ip|*|60|*",
        ),
        Case(
            "an IPv6 address stands for its /64",
            "a ip for=2001:db8::1",
            "ip=2001:db8::ffff:0:0:2",
            "a ip:2001:db8::/64 rule|ip|*|60|*",
        ),
        Case("the next /64 is another", "a ip for=2001:db8::1", "ip=2001:db8:0:1::1", ""),
        Case(
            "a mapped IPv4 address is the IPv4 address",
            "a ip for=10.0.0.1",
            "ip=::ffff:10.0.0.1",
            "a ip:10.0.0.1 rule|ip|*|60|*",
        ),
        Case("and so it is in a rule", "a ip for=::ffff:10.0.0.1", "ip=10.0.0.1", "a ip:10.0.0.1 rule|ip|*|60|*"),
        Case("IPv6 under a rule for all is counted by /64", "a ip", "ip=fe80::1%eth0", "a ip:fe80::/64 rule|ip|*|60|*"),
        Case("IPv4 addresses are not grouped", "a ip", "ip=10.0.0.2", "a ip:10.0.0.2 rule|ip|*|60|*"),
    ),
    *said(
        "endpoint_pattern: `*` alone is every path.",
        Case("a path", "a user on=*", "user=1 path=/any/thing", "a user:1 rule|user|*|60|*"),
        Case("the root", "a user on=*", "user=1 path=/", "a user:1 rule|user|*|60|*"),
        Case("the name of an API", "a user on=*", "user=1 path=getUsers", "a user:1 rule|user|*|60|*"),
        Case("no path", "a user on=*", "user=1", "a user:1 rule|user|*|60|*"),
        Case("`**` is `*`", "a user on=**", "user=1", "a user:1 rule|user|*|60|*"),
        Case("`/*` is every path, but no name", "a user on=/*", "user=1 path=getUsers", ""),
        Case("`/*` is every path, but not the lack of one", "a user on=/*", "user=1", ""),
        Case("`/*` is the root and all below", "a user on=/*", "user=1 path=/", "a user:1 rule|user|*|60|/*"),
    ),
    *said(
        "endpoint_pattern: path segments; `*` matches one segment, a final `*` or `**` the rest, `{name}` one segment.",
        Case("literal", "a user on=/orders", "user=1 path=/orders", "a user:1 rule|user|*|60|/orders"),
        Case("literal is not what is below", "a user on=/orders", "user=1 path=/orders/7", ""),
        Case("literal is not the beginning of a segment", "a user on=/orders", "user=1 path=/orders2", ""),
        Case("upper and lower case differ", "a user on=/orders", "user=1 path=/Orders", ""),
        Case("no literal without a path", "a user on=/orders", "user=1", ""),
        Case(
            "a `*` in the middle is one segment",
            "a user on=/u/*/o",
            "user=1 path=/u/7/o",
            "a user:1 rule|user|*|60|/u/{}/o",
        ),
        Case("and not two", "a user on=/u/*/o", "user=1 path=/u/7/8/o", ""),
        Case("and not none", "a user on=/u/*/o", "user=1 path=/u/o", ""),
        Case(
            "a `{name}` in the middle says the same",
            "a user on=/u/{id}/o",
            "user=1 path=/u/7/o",
            "a user:1 rule|user|*|60|/u/{}/o",
        ),
        Case(
            "a final `{name}` is one segment", "a user on=/u/{id}", "user=1 path=/u/7", "a user:1 rule|user|*|60|/u/{}"
        ),
        Case("and not the rest", "a user on=/u/{id}", "user=1 path=/u/7/o", ""),
        Case("and not none either", "a user on=/u/{id}", "user=1 path=/u", ""),
        Case("a final `*` is one segment more", "a user on=/o/*", "user=1 path=/o/7", "a user:1 rule|user|*|60|/o/*"),
        Case("or many", "a user on=/o/*", "user=1 path=/o/7/8/9", "a user:1 rule|user|*|60|/o/*"),
        Case("or none", "a user on=/o/*", "user=1 path=/o", "a user:1 rule|user|*|60|/o/*"),
        Case("but not part of one", "a user on=/o/*", "user=1 path=/other", ""),
        Case("a final `**` is the same", "a user on=/o/**", "user=1 path=/o/7/8", "a user:1 rule|user|*|60|/o/*"),
        Case("middle and end", "a user on=/u/*/o/*", "user=1 path=/u/1/o/2/3", "a user:1 rule|user|*|60|/u/{}/o/*"),
        Case("a `*` first", "a user on=/*/o", "user=1 path=/x/o", "a user:1 rule|user|*|60|/{}/o"),
        Case(
            "a segment that looks like a wildcard is a segment",
            "a user on=/u/*/o",
            "user=1 path=/u/{}/o",
            "a user:1 rule|user|*|60|/u/{}/o",
        ),
        Case(
            "a pattern is normalised as a path is",
            "a user on=//u/./{id}/",
            "user=1 path=/u/7",
            "a user:1 rule|user|*|60|/u/{}",
        ),
        Case("the root", "a user on=/", "user=1 path=/", "a user:1 rule|user|*|60|/"),
        Case("the root is not what is below", "a user on=/", "user=1 path=/x", ""),
        Case("a name is literal", "a user on=getUsers", "user=1 path=getUsers", "a user:1 rule|user|*|60|getUsers"),
        Case("a name is no path", "a user on=getUsers", "user=1 path=/getUsers", ""),
        Case("a path is no name", "a user on=/getUsers", "user=1 path=getUsers", ""),
        Case("a name with a slash", "a user on==r/x", "user=1 path=r/x", "a user:1 rule|user|*|60|=r/x"),
        Case("which is a path, too", "a user on=/r/*", "user=1 path=r/x", "a user:1 rule|user|*|60|/r/*"),
        Case("a name of stars", "a user on==*\nb user on==r/*", "user=1 path=r/x", ""),
        Case("and what is called so", "a user on==r/*", "user=1 path=r/*", "a user:1 rule|user|*|60|=r/*"),
        Case("`=` before a plain name changes nothing", "a user on==q", "user=1 path=q", "a user:1 rule|user|*|60|q"),
        Case("nobody is called `*`", "a user on=getUsers\nb user", "user=1 path=*", "b user:1 rule|user|*|60|*"),
    ),
    *said(
        "Paths are normalised before matching, so that spelling does not evade a rule.",
        Case("//", "a user on=/o/x", "user=1 path=//o//x", "a user:1 rule|user|*|60|/o/x"),
        Case(". and ..", "a user on=/o/x", "user=1 path=/y/../o/./x", "a user:1 rule|user|*|60|/o/x"),
        Case("percent", "a user on=/o/x", "user=1 path=/%6F%2fx", "a user:1 rule|user|*|60|/o/x"),
        Case(
            "what one server drops is a value to another, and both rules apply",
            "value user on=/s/*/r\nup user on=/r",
            "user=1 path=/s/%2e%2e/r",
            "up user:1 rule|user|*|60|/r\nvalue user:1 rule|user|*|60|/s/{}/r",
        ),
        Case(
            "and none applies twice",
            "a user on=/*",
            "user=1 path=/s/..;x/%2F/r",
            "a user:1 rule|user|*|60|/*",
        ),
        Case("a parameter of `;x`", "a user on=/s/*/r", "user=1 path=/s/;x/r", "a user:1 rule|user|*|60|/s/{}/r"),
        Case("of an encoded slash", "a user on=/s/*/r", "user=1 path=/s/a%2Fb/r", "a user:1 rule|user|*|60|/s/{}/r"),
        Case("of a NUL", "a user on=/s/*/r", "user=1 path=/s/a%00b/r", "a user:1 rule|user|*|60|/s/{}/r"),
        Case("below a path", "a user on=/f/*", "user=1 path=/f/..;/..;/x", "a user:1 rule|user|*|60|/f/*"),
        Case("and so is the path that is counted by", "a api", "path=/o//x/", "a api:/o/x rule|api|*|60|*"),
    ),
    *said(
        "A more specific pattern does not hide the others: all that match apply.",
        Case(
            "from every path down to one, in the order of their spelling",
            """
            one user on=/o/7
            all user
            any user on=/o/{id}
            rest user on=/o/*
            root user on=/*
            """,
            "user=1 path=/o/7",
            """
            all  user:1 rule|user|*|60|*
            root user:1 rule|user|*|60|/*
            rest user:1 rule|user|*|60|/o/*
            one  user:1 rule|user|*|60|/o/7
            any  user:1 rule|user|*|60|/o/{}
            """,
        ),
        Case(
            "an exact identifier elsewhere hides nothing either",
            "all user\nmine user for=1 on=/o",
            "user=1 path=/o",
            "all user:1 rule|user|*|60|*\nmine user:1 rule|user|*|60|/o",
        ),
    ),
    *said(
        "A rule applies when its method matches.",
        Case("the same", "a user method=GET", "user=1 method=GET", "a user:1 rule|user|GET|60|*"),
        Case("in any case", "a user method=get", "user=1 method=Get", "a user:1 rule|user|GET|60|*"),
        Case("another", "a user method=GET", "user=1 method=POST", ""),
        Case("HEAD is not GET", "a user method=GET", "user=1 method=HEAD", ""),
        Case("none", "a user method=GET", "user=1", ""),
        Case("`*` is every one", "a user", "user=1 method=PURGE", "a user:1 rule|user|*|60|*"),
        Case("`*` is also none", "a user", "user=1", "a user:1 rule|user|*|60|*"),
        Case(
            "another method is another slot: both apply, `*` first",
            "get user method=GET\nall user",
            "user=1 method=GET",
            "all user:1 rule|user|*|60|*\nget user:1 rule|user|GET|60|*",
        ),
    ),
    *said(
        "A user has a tier (default `free`); rules with that tier apply.",
        Case(
            "without a tier one is free",
            "f user tier=free\ng user tier=gold",
            "user=alice",
            "f user:alice rule|user|*|60|*",
        ),
        Case(
            "the user's",
            "f user tier=free\ng user tier=gold",
            "user=alice",
            "g user:alice rule|user|*|60|*",
            {"alice": "gold"},
        ),
        Case(
            "somebody else's",
            "f user tier=free\ng user tier=gold",
            "user=bob",
            "f user:bob rule|user|*|60|*",
            {"alice": "gold"},
        ),
        Case(
            "the request knows better",
            "f user tier=free\ng user tier=gold",
            "user=alice tier=free",
            "f user:alice rule|user|*|60|*",
            {"alice": "gold"},
        ),
        Case("nobody has a tier of no rule", "g user tier=gold", "user=alice tier=silver", ""),
        Case("upper and lower case differ", "g user tier=gold", "user=alice tier=Gold", ""),
        Case(
            "who is anonymous is free", "f ip tier=free\ng ip tier=gold", "ip=10.0.0.1", "f ip:10.0.0.1 rule|ip|*|60|*"
        ),
        Case(
            "unless the request says otherwise",
            "f ip tier=free\ng ip tier=gold",
            "ip=10.0.0.1 tier=gold",
            "g ip:10.0.0.1 rule|ip|*|60|*",
        ),
        Case(
            "the user's tier counts in every dimension",
            "g global tier=gold\nf global tier=free",
            "user=alice",
            "g global rule|global|*|60|*",
            {"alice": "gold"},
        ),
        Case(
            "a tier called `*` is none of the others",
            "a user\ng user tier=gold",
            "user=alice tier=*",
            "a user:alice rule|user|*|60|*",
        ),
    ),
    *said(
        "A rule applies when it is not disabled or expired.",
        Case("disabled", "a user disabled", "user=1", ""),
        Case(
            "a disabled rule wins over nobody", "a user\nb user for=1 disabled", "user=1", "a user:1 rule|user|*|60|*"
        ),
        Case("not yet ended", "a user ends=+0.000001", "user=1", "a user:1 rule|user|*|60|*"),
        Case("ended now", "a user ends=+0", "user=1", ""),
        Case("long ended", "a user ends=-3600", "user=1", ""),
        Case("an ended rule wins over nobody", "a user\nb user for=1 ends=-1", "user=1", "a user:1 rule|user|*|60|*"),
    ),
    *said(
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
    *said(
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
    *said(
        "Of two equally specific rules, the one with expires_at wins while it lasts.",
        Case("while it lasts", "a user for=1\nb user for=1 ends=+1", "user=1", "b user:1 rule|user|*|60|*"),
        Case(
            "also when it was there first", "b user for=1 ends=+1\na user for=1", "user=1", "b user:1 rule|user|*|60|*"
        ),
        Case("and no longer", "a user for=1\nb user for=1 ends=+0", "user=1", "a user:1 rule|user|*|60|*"),
        Case("of two for everybody", "a user\nb user ends=+1", "user=1", "b user:1 rule|user|*|60|*"),
        Case("of two for a tier", "a user tier=free\nb user tier=free ends=+1", "user=1", "b user:1 rule|user|*|60|*"),
        Case("but not over a more specific one", "a user for=1\nb user ends=+1", "user=1", "a user:1 rule|user|*|60|*"),
        Case(
            "a tier's end does not beat an identifier",
            "a user for=1\nb user tier=free ends=+1",
            "user=1",
            "a user:1 rule|user|*|60|*",
        ),
    ),
    *said(
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
    *said(
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
    *said(
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
    *said(
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
    *said(
        "An unknown client gets the configured default limits at its first request.",
        Case("unknown", "a user", "client=new", "default-client-limits client:new rule|client|*|60|*"),
        Case(
            "somebody else is configured",
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
            "a rule that is disabled configures nobody",
            "a client for=acme disabled",
            "client=acme",
            "default-client-limits client:acme rule|client|*|60|*",
        ),
        Case(
            "a rule that has ended configures nobody",
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
    *said(
        "Policies: a rule of dimension `key`. A key without a policy gets the default policy.",
        Case("without", "a user", "key=job", "default-policy key:job rule|key|*|1|*"),
        Case("with", "p key for=job 60s", "key=job", "p key:job rule|key|*|60|*"),
        Case("somebody else's", "p key for=job 60s", "key=other", "default-policy key:other rule|key|*|1|*"),
        Case("a rule for all keys is a policy of each", "p key 60s", "key=other", "p key:other rule|key|*|60|*"),
        Case(
            "one that is disabled is none", "p key for=job disabled", "key=job", "default-policy key:job rule|key|*|1|*"
        ),
    ),
    *said(
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
            "what is not known is left out",
            "p key",
            "path=/x",
            "p key:route:/x rule|key|*|60|*",
            policy_key=("user", "route"),
        ),
        Case("when nothing is known there is no key", "p key", "api_key=k", "", policy_key=("user", "route")),
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
            "different requests never make one key (a user who spells a route)",
            "p key",
            "user=a|route:/x path=/y",
            "p key:user:a%7Croute:/x|route:/y rule|key|*|60|*",
            policy_key=("user", "route"),
        ),
        Case(
            "different requests never make one key (a user who spells an escape)",
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
    *said(
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
