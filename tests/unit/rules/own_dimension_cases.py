"""Cases on own dimensions: attributes of a request, and several dimensions together."""

from __future__ import annotations

from unit.rules.cases import Case, cases_of

__all__ = ["OWN_DIMENSIONS"]

SPECIFIC = """
    all          org,model
    gold         org,model tier=gold
    large        org,model for=*,large
    acme         org,model for=acme,*
    acme-large   org,model for=acme,large
"""

OWN_DIMENSIONS: list[Case] = [
    *cases_of(
        "A rule's dimension may be an attribute's name, with an identifier or `*`.",
        Case("an attribute", "a org", "@org=acme", "a org:acme rule|org|*|60|*"),
        Case("in any case", "a Org", "@org=acme", "a org:acme rule|org|*|60|*"),
        Case("its value decides the counter, as it is", "a org", "@org=A|b:c", "a org:A|b:c rule|org|*|60|*"),
        Case("an exact identifier", "a org for=acme\nb org for=other", "@org=acme", "a org:acme rule|org|*|60|*"),
        Case("an identifier over `*`", "a org\nb org for=acme", "@org=acme", "b org:acme rule|org|*|60|*"),
        Case(
            "beside the others, after them",
            "o org\ng global",
            "@org=acme",
            "g global rule|global|*|60|*\no org:acme rule|org|*|60|*",
        ),
        Case("on its pattern", "a org on=/x\nb org on=/y", "@org=acme path=/y", "b org:acme rule|org|*|60|/y"),
        Case("with a tier", "a org tier=gold", "@org=acme tier=gold", "a org:acme rule|org|*|60|*"),
        Case("shadow", "a org shadow", "@org=acme", "a org:acme shadow|org|*|60|*"),
        Case("disabled", "a org disabled", "@org=acme", ""),
    ),
    *cases_of(
        "Absent attribute: the rule does not apply.",
        Case("none at all", "a org", "user=1", ""),
        Case("only another", "a org", "@model=large", ""),
        Case("a part of a list", "a org,model", "@org=acme", ""),
        Case("an attribute is no user", "a user", "@org=1", ""),
    ),
    *cases_of(
        "A rule's dimension may be a list: a composite counter.",
        Case("two attributes", "a org,model", "@org=acme @model=large", "a model:large|org:acme rule|model,org|*|60|*"),
        Case(
            "in whatever order", "a model,org", "@org=acme @model=large", "a model:large|org:acme rule|model,org|*|60|*"
        ),
        Case("with a built-in one", "a model,user", "user=7 @model=x", "a user:7|model:x rule|user,model|*|60|*"),
        Case(
            "only built-in ones", "a ip,user", "user=7 ip=::ffff:10.0.0.1", "a user:7|ip:10.0.0.1 rule|user,ip|*|60|*"
        ),
        Case(
            "an endpoint by its pattern",
            "a api,org on=/o/*",
            "@org=a path=/o/7",
            "a api:/o/*|org:a rule|api,org|*|60|/o/*",
        ),
        Case("an endpoint by its path", "a api,org", "@org=a path=/o/7", "a api:/o/7|org:a rule|api,org|*|60|*"),
        Case("a list of one is no list", "a org,model\nb org", "@org=x", "b org:x rule|org|*|60|*"),
        Case(
            "separators in values",
            "a org,model",
            "@org=a|model:b @model=c%",
            "a model:c%25|org:a%7Cmodel:b rule|model,org|*|60|*",
        ),
        Case("a value that looks like `*`", SPECIFIC, "@org=* @model=m", "all model:m|org:%2A rule|model,org|*|60|*"),
    ),
    *cases_of(
        "Of a list, the rule with most exact parts wins, of as many the one whose exact parts are written first.",
        Case("`*`", SPECIFIC, "@org=o @model=m", "all model:m|org:o rule|model,org|*|60|*"),
        Case("a tier over `*`", SPECIFIC, "@org=o @model=m tier=gold", "gold model:m|org:o rule|model,org|*|60|*"),
        Case(
            "one part over a tier",
            SPECIFIC,
            "@org=acme @model=m tier=gold",
            "acme model:m|org:acme rule|model,org|*|60|*",
        ),
        Case("the other part", SPECIFIC, "@org=o @model=large", "large model:large|org:o rule|model,org|*|60|*"),
        Case("both parts", SPECIFIC, "@org=acme @model=large", "acme-large model:large|org:acme rule|model,org|*|60|*"),
        Case(
            "of one part each, that which is written first",
            "b org,model for=*,large\na org,model for=acme,*",
            "@org=acme @model=large",
            "a model:large|org:acme rule|model,org|*|60|*",
        ),
        Case(
            "of two written first, built-in dimensions come first",
            "a org,user for=acme,*\nb user,org for=7,*",
            "@org=acme user=7",
            "b user:7|org:acme rule|user,org|*|60|*",
        ),
        Case(
            "an address in any spelling",
            "a ip,org\nb ip,org for=2001:db8::7,acme",
            "ip=2001:db8::8 @org=acme",
            "b ip:2001:db8::/64|org:acme rule|ip,org|*|60|*",
        ),
        Case(
            "one with an end, while it lasts",
            "a org,model for=acme,*\nb org,model for=acme,* ends=+10",
            "@org=acme @model=m",
            "b model:m|org:acme rule|model,org|*|60|*",
        ),
        Case(
            "another list is another slot",
            "a org,model\nb org\nc org,model,user",
            "@org=o @model=m user=u",
            """
            a model:m|org:o rule|model,org|*|60|*
            b org:o rule|org|*|60|*
            c user:u|model:m|org:o rule|user,model,org|*|60|*
            """,
        ),
    ),
]
