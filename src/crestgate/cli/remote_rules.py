"""Rules of a running service, by its HTTP API, for `crestgate rules`.

Where a database has one transaction, this makes a call for each rule, in an order that frees a slot before it is taken:
deletions, changes, additions. Each call is atomic, and names the version that was compared; if one fails, the writes
before it remain, and the command can be run again.

Rules and plans can be written through a service. Tiers and defaults are written to its database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from crestgate.cli.remote import ServiceClient
from crestgate.errors import ConfigError, CrestgateError, NotFoundError, Problem, ValidationError
from crestgate.loader.fields import Fields, Problems
from crestgate.rules.compat.policies import policy_of
from crestgate.rules.diff import Difference, all_records, compare
from crestgate.rules.port import Kind, Record, UnreadableRecord
from crestgate.rules.records import plan_of, rule_of
from crestgate.rules.rule import Rule
from crestgate.rules.timestamps import read_timestamp

__all__ = ["ServiceRules"]

RULES = "/api/v1/rules"
PLANS = "/api/v1/plans"
POLICIES = "/admin/policies"
PAGE = 1000
READ_ONLY_FIELDS = ("created_at", "updated_at", "version")
"""Fields of a rule that the service sets."""
WRITABLE: tuple[Kind, ...] = ("rule", "plan")


class ServiceRules:
    """The rules and plans of a service: of its database, and of its files, which have no timestamps."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service
        self.title = service.title

    # -- as a repository, for reading ---------------------------------------------------------------------------------

    def get(self, kind: Kind, record_id: str) -> Record | None:
        if kind not in WRITABLE:
            return None  # not in the API
        try:
            data = self._service.get(_path(kind, record_id))
        except NotFoundError:
            return None
        return self._record(kind, data)

    def list(self, kind: Kind, *, prefix: str = "", after: str = "", limit: int = PAGE) -> Sequence[Record]:
        if kind not in WRITABLE:
            raise ConfigError(
                f"a service lists rules and plans, but no {kind}s: use its database, with --rules-store URL"
            )
        path, name = (RULES, "rules") if kind == "rule" else (PLANS, "plans")
        found: list[Record] = []
        while page := self._page(kind, path, name, after):
            found += (record for record in page if record.id.startswith(prefix))
            if len(found) >= limit:
                break
            after = page[-1].id
        return found[:limit]

    # -- as an editor -------------------------------------------------------------------------------------------------

    def readable_rules(self) -> tuple[Sequence[Rule], Sequence[UnreadableRecord]]:
        """All rules, and what the service cannot read."""
        rules = [rule_of(record) for record in all_records(self, "rule")]
        listed = self._service.get(RULES, limit=1, after="").get("unreadable") or []
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise self._service.unexpected("its unreadable rules are not a list of objects")
        found = [(str(one.get("kind")), str(one.get("id")), str(one.get("message"))) for one in listed]
        return rules, [UnreadableRecord(kind, name, (Problem("", text),)) for kind, name, text in found]

    def rule(self, rule_id: str) -> Rule:
        return rule_of(self._get_rule(rule_id))

    def difference(self, records: Iterable[Record]) -> Difference:
        """As for a database, but without the rules of the service's own files."""
        new_records = list(records)
        refused = next((record for record in new_records if record.kind not in WRITABLE), None)
        if refused is not None:
            raise ConfigError(
                f"{refused.kind} {refused.id!r} cannot be written through a service, which accepts rules, plans, "
                "policies and clients: write it to its database with --rules-store URL"
            )
        difference = compare(self, new_records)
        other = [record for record in difference.other if record.created_us]
        return replace(difference, other=other, numbers=None)

    def apply(self, difference: Difference, *, prune: bool = False) -> None:
        """Apply it, call by call."""
        done = 0
        total = len(difference.changed) + len(difference.added) + (len(difference.other) if prune else 0)
        try:
            for record in difference.other if prune else ():
                self._service.delete(_path("rule", record.id), record.version)
                done += 1
            for old, new in difference.changed:
                self._service.put(_path(new.kind, new.id), new.body, old.version if new.kind == "rule" else None)
                done += 1
            for record in difference.added:
                self._add(record)
                done += 1
        except CrestgateError as error:
            if not done:
                raise
            message = f"{error} ({done} of {total} were already written; correct it and run it again)"
            raise (ConfigError if isinstance(error, ValidationError) else type(error))(message) from None

    def delete_all(self, rule_ids: Iterable[str]) -> None:
        """NotFoundError, and none is deleted, if one does not exist."""
        found = [self._get_rule(rule_id) for rule_id in dict.fromkeys(rule_ids)]
        for record in found:
            self._service.delete(_path("rule", record.id), record.version)

    def _add(self, record: Record) -> None:
        if record.kind == "plan":
            self._service.post(PLANS, {"name": record.id, **record.body})
            return
        policy = policy_of(rule_of(record))
        if policy is None:
            self._service.post(RULES, record.body)
        else:  # the service assigns its number
            self._service.post(POLICIES, {"key": policy.key, **policy.numbers()})

    def _page(self, kind: Kind, path: str, name: str, after: str) -> Sequence[Record]:
        filters = {"expired": "true"} if kind == "rule" else {}  # as a database lists them
        found = self._service.get(path, limit=PAGE, after=after, **filters).get(name)
        if not isinstance(found, list):
            raise self._service.unexpected(f"its response has no {name}")
        return [self._record(kind, data) for data in found]

    def _get_rule(self, rule_id: str) -> Record:
        record = self.get("rule", rule_id)
        if record is None:
            raise NotFoundError(f"there is no rule {rule_id!r}")
        return record

    def _record(self, kind: Kind, data: Any) -> Record:
        """A rule or plan of the API as a record."""
        if not isinstance(data, dict):
            raise self._service.unexpected(f"it returned an invalid {kind}")
        if kind == "plan":
            body = {name: value for name, value in data.items() if name != "name"}
            record = Record("plan", str(data.get("name")), 1, body, 1, 1)
            plan_of(record)  # raises if it is invalid
            return record
        fields = Fields(data, "", Problems(), data)
        version = data.get("version")
        body = {name: value for name, value in data.items() if name not in READ_ONLY_FIELDS}
        created_us, updated_us = read_timestamp(fields, "created_at") or 0, read_timestamp(fields, "updated_at") or 0
        rule_id, number = str(data.get("rule_id")), version if isinstance(version, int) else 1
        record = Record("rule", rule_id, number, body, created_us, updated_us)
        rule = rule_of(record)
        return replace(record, unique_key=rule.unique_key, expires_us=rule.expires_us)


def _path(kind: Kind, record_id: str) -> str:
    return f"{RULES if kind == 'rule' else PLANS}/{quote(record_id, safe='')}"
