"""Type errors of the editor for arguments of the wrong type, mostly plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from crestgate.rules import Actor, Editor
from unit.rules.memory_repository import MemoryRepository

RULE: Any = {"name": "Orders", "dimension": "user", "limit": 100, "window_seconds": 60}
POLICY: Any = {"key": "user:42", "capacity": 100}
LIMIT: Any = {"limitType": "DEFAULT", "timeIntervalLimit": {"timeUnit": "MIN", "maxRequests": 100}}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda editor: editor.create(RULE), r"must be a rule, such as Rule\.read\(.*\), not dict"),
        (lambda editor: editor.replace(RULE), r"must be a rule, such as Rule\.read\(.*\), not dict"),
        (
            lambda editor: editor.override("bob", "orders", 5, 60),
            r"must be the rule itself: .*editor\.rule\(.*, not str",
        ),
        (lambda editor: editor.create_policy(POLICY), r"must be a policy, such as Policy\(.*\), not dict"),
        (lambda editor: editor.replace_policy(POLICY), r"must be a policy, such as Policy\(.*\), not dict"),
        (lambda editor: editor.configure_client("c", [LIMIT]), r"must be a sequence .*\[ClientLimit\(.*\)\], not dict"),
        (lambda editor: editor.configure_client("c", LIMIT), r"must be a sequence .*\[ClientLimit\(.*\)\], not str"),
    ],
)
def test_type_error_names_the_expected_type(call: Callable[[Editor], object], message: str) -> None:
    repository = MemoryRepository()
    with pytest.raises(TypeError, match=message):
        call(Editor(repository, Actor("alice")))
    assert repository.revision == 0
