"""The tables about web frameworks: each row is compared with the code."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask

from crestgate.integrations.django.options import _KNOWN, _PER_LAYER
from crestgate.integrations.fastapi import limit
from crestgate.integrations.flask import Crestgate
from crestgate.integrations.keys import _NAMES, build_key_maker
from crestgate.integrations.layer import LayerOptions, LimitLayer
from crestgate.integrations.request import Request
from crestgate.limiter.limiter import Limiter

DOCS = Path(__file__).parent.parent.parent / "docs"
TEXT = (DOCS / "frameworks.md").read_text() + (DOCS / "frameworks-options.md").read_text()


def first_column(head: str) -> list[str]:
    """The code in the first cells of the table whose first line begins with `head`."""
    table = TEXT.partition(f"\n{head}")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [re.split(r"(?<!\\)\|", row)[1] for row in table]
    return [code.replace(r"\|", "|") for cell in cells for code in re.findall("`([^`]+)`", cell)]


def test_every_option_is_in_the_table() -> None:
    assert sorted(first_column("| option |")) == sorted([*LayerOptions.__annotations__, "limiter", "limits", "scope"])


def test_every_key_in_the_table_can_be_used_and_none_is_missing() -> None:
    keys = first_column("| `key` | a request")
    assert {*_NAMES} < {*keys}
    for key in keys:
        build_key_maker(key)


@pytest.mark.parametrize("name", first_column("| attribute |"))
def test_request_has_the_attributes_of_the_table(name: str) -> None:
    assert hasattr(Request, name)


def test_counters_have_the_keys_of_the_table() -> None:
    keys = {
        row.split("|")[1].strip(): row
        for row in TEXT.replace(r"\|", "%").splitlines()
        if row.startswith("| a route's in")
    }
    keys_shown = {name: re.findall("`([^`]+)`", row)[0].replace("%", "|") for name, row in keys.items()}
    with Limiter("memory://") as limiter:
        site = Flask("site")
        gate = Crestgate(site, limiter=limiter)
        site.get("/item/<int:number>")(gate.limit("2/minute")(lambda number: str(number)))
        site.test_client().get("/item/1")
        assert limiter.peek(keys_shown["a route's in Flask"], "2/minute").remaining == 1

        app = FastAPI()
        app.get("/item/{item_id}")(limit("2/minute", limiter=limiter)(lambda item_id: item_id))
        asyncio.run(get(app, "/item/1"))
        assert limiter.peek(keys_shown["a route's in FastAPI"], "2/minute").remaining == 1


async def get(app: FastAPI, path: str) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        assert (await client.get(path)).status_code == 200


def test_every_limit_in_the_text_is_valid() -> None:
    limits = re.findall(r'(?:limit\(|limits=|"[^"\n]+": )\[?"(\d[^"]*)"', TEXT)
    assert len(limits) >= 15
    with Limiter("memory://") as limiter:
        for limit in limits:
            LimitLayer(limiter, limit)


def test_every_setting_of_flask_is_in_the_table() -> None:
    described = re.findall(r"^ +(CRESTGATE_\w+)", Crestgate.__doc__ or "", re.MULTILINE)
    assert sorted(first_column("| in `app.config` |")) == sorted(described)


def test_settings_of_django_are_sorted_as_the_code_does() -> None:
    shared, own = TEXT.partition("are also the defaults of decorators")[::2]
    shared = shared.rpartition("with a hint.")[2]
    own = own.partition("apply to the middleware alone")[0]
    assert {*re.findall("`([A-Z_]+)`", own)} | {"LIMITER"} == {*_PER_LAYER}
    assert {*re.findall("`([A-Z_]+)`", shared)} == {*_KNOWN} - {*_PER_LAYER} | {"LIMITER"}
