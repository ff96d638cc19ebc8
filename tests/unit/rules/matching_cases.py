"""Cases on whether a rule applies to a request: by its dimension, identifier, path, method, tier and time."""

from __future__ import annotations

from unit.rules.cases import Case, cases_of

__all__ = ["MATCHING"]

MATCHING: list[Case] = [
    *cases_of(
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
            "all together, in the order user, apikey, client, ip, key, api, global",
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
    *cases_of(
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
    *cases_of(
        "A rule applies when its identifier is equal or `*`.",
        Case("equal", "a user for=42", "user=42", "a user:42 rule|user|*|60|*"),
        Case("another", "a user for=42", "user=43", ""),
        Case("a longer one", "a user for=42", "user=420", ""),
        Case("upper and lower case differ", "a user for=Bob", "user=bob", ""),
        Case("`*` is every user, each with a counter", "a user", "user=43", "a user:43 rule|user|*|60|*"),
        Case("a user named `*` is an ordinary user", "a user\nb user for=42", "user=*", "a user:* rule|user|*|60|*"),
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
    *cases_of(
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
    *cases_of(
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
            "a `{name}` in the middle is equivalent",
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
        Case("a name with a slash is a path, too", "a user on=/r/*", "user=1 path=r/x", "a user:1 rule|user|*|60|/r/*"),
        Case("a name of stars", "a user on==*\nb user on==r/*", "user=1 path=r/x", ""),
        Case("a name with a literal star", "a user on==r/*", "user=1 path=r/*", "a user:1 rule|user|*|60|=r/*"),
        Case("`=` before a plain name changes nothing", "a user on==q", "user=1 path=q", "a user:1 rule|user|*|60|q"),
        Case("`*` is not a path name", "a user on=getUsers\nb user", "user=1 path=*", "b user:1 rule|user|*|60|*"),
    ),
    *cases_of(
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
    *cases_of(
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
    *cases_of(
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
    *cases_of(
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
            "of another user",
            "f user tier=free\ng user tier=gold",
            "user=bob",
            "f user:bob rule|user|*|60|*",
            {"alice": "gold"},
        ),
        Case(
            "the tier of the request takes precedence",
            "f user tier=free\ng user tier=gold",
            "user=alice tier=free",
            "f user:alice rule|user|*|60|*",
            {"alice": "gold"},
        ),
        Case("a tier without rules", "g user tier=gold", "user=alice tier=silver", ""),
        Case("upper and lower case differ", "g user tier=gold", "user=alice tier=Gold", ""),
        Case(
            "anonymous requests have tier free",
            "f ip tier=free\ng ip tier=gold",
            "ip=10.0.0.1",
            "f ip:10.0.0.1 rule|ip|*|60|*",
        ),
        Case(
            "unless the request has a tier",
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
    *cases_of(
        "A rule applies when it is not disabled or expired.",
        Case("disabled", "a user disabled", "user=1", ""),
        Case("a disabled rule never wins", "a user\nb user for=1 disabled", "user=1", "a user:1 rule|user|*|60|*"),
        Case("not yet ended", "a user ends=+0.000001", "user=1", "a user:1 rule|user|*|60|*"),
        Case("ended now", "a user ends=+0", "user=1", ""),
        Case("long ended", "a user ends=-3600", "user=1", ""),
        Case("an expired rule never wins", "a user\nb user for=1 ends=-1", "user=1", "a user:1 rule|user|*|60|*"),
    ),
]
