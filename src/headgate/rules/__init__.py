"""What applies to whom: rules, where they are kept, and how a program changes them.

repository = open_repository("sqlite:///rules.db")
editor = Editor(repository, Actor("deploy"))
editor.create(Rule.read({"name": "Orders", "dimension": "user", "limit": 100, "window_seconds": 60}))
"""

from headgate.rules.context import RequestContext
from headgate.rules.editor import Editor
from headgate.rules.repositories.opening import open_repository
from headgate.rules.repositories.port import Actor, AuditEntry, AuditQuery
from headgate.rules.rule import Rule
from headgate.rules.views.clients import ClientLimit
from headgate.rules.views.policies import Policy

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
