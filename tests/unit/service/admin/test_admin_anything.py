"""Valid and invalid requests generated from the OpenAPI document get documented responses, never 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from unit.service.admin.admin_client import Control
from unit.service.admin.test_admin_openapi import CONTROL_PLANE

OPERATIONS = [(path, method) for path, methods in CONTROL_PLANE.items() for method in sorted(methods)]
EXAMPLES = 25


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    made = Control(Path(tmp_path_factory.mktemp("control")))
    yield made
    made.close()


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_generated_requests_get_documented_responses(shared: Control, path: str, method: str) -> None:
    operation = shared.described[path][method.upper()]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def check_response(case: Any) -> None:
        sent = case.as_transport_kwargs(base_url="http://crestgate")
        body = sent.get("data") if sent.get("json") is None else None
        response = shared.runner.run(
            shared.http.request(
                sent["method"],
                sent["url"],
                params=sent.get("params"),
                headers={name: value.encode("latin-1") for name, value in sent["headers"].items() if value is not None},
                **({"json": sent["json"]} if sent.get("json") is not None else {"content": body or b""}),
            )
        )
        shared.validate_against_openapi(response)
        assert response.status_code < 500

    check_response()
