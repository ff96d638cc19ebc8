"""Rules: their definition, storage and editing.

repository = open_repository("sqlite:///rules.db")
editor = Editor(repository, Actor("deploy"))
editor.create(Rule.read({"name": "Orders", "dimension": "user", "limit": 100, "window_seconds": 60}))
"""

from crestgate.core.context import RequestContext
from crestgate.rules.compat.clients import ClientLimit
from crestgate.rules.compat.policies import Policy
from crestgate.rules.editor import Editor
from crestgate.rules.port import Actor, AuditEntry, AuditQuery
from crestgate.rules.rule import Rule
from crestgate.rules.storage.factory import open_repository

__all__ = [
    "Actor",
    "AuditEntry",
    "AuditQuery",
    "ClientLimit",
    "Editor",
    "Policy",
    "RequestContext",
    "Rule",
    "open_repository",
]
