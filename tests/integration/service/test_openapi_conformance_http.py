"""Valid and invalid requests generated from the OpenAPI document: each response of a running service conforms to it.

The tests use their own service, because generated rules may block everything. The examples are the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from crestgate.service.admin.check_docs import DATA_PATHS
from integration.service.service_process import GENEROUS, Service
from unit.service.admin.test_admin_openapi import CONTROL_PLANE

CALLS = [(path, method) for path, methods in CONTROL_PLANE.items() for method in sorted(methods)]
CALLS += [(path, method) for path, item in DATA_PATHS.items() for method in item]
EXAMPLES = 20
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
AUTHORIZE_PATH = "/api/v1/authorize"


@pytest.fixture(scope="module")
def own_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("described"), environment=GENEROUS) as started:
        yield started
        _, found, rest = started.logged.partition("Traceback")
        assert not found, rest[:3000]


@pytest.fixture(scope="module")
def schema(own_service: Service) -> Any:
    return schemathesis.openapi.from_url(f"{own_service.url}/openapi.json")


@pytest.mark.parametrize(("path", "method"), CALLS)
def test_responses_conform_to_openapi(own_service: Service, schema: Any, path: str, method: str) -> None:
    operation = schema[path][method.upper()]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))
    key = {"X-Crestgate-Key": own_service.key} if path == AUTHORIZE_PATH else own_service.admin

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def check_case(case: Any) -> None:
        response = case.call(headers=key)
        denied = path == AUTHORIZE_PATH and response.status_code >= 500 and b"#quota-exceeded" in response.content
        checks = CHECKS[1:] if denied else CHECKS  # a proxy may ask to be denied with 5xx
        try:
            case.validate_response(response, checks=checks)
        except FailureGroup as group:
            raise AssertionError(
                "\n".join(f"{type(failure).__name__}: {failure}" for failure in group.exceptions)
            ) from None

    check_case()
    assert own_service.process.poll() is None
