"""Labels of metrics and attributes of spans: names of rules and limits, bounded, and never a key.

The ids of rules that were created for one policy, client or user contain its key. It is left out, so such rules are
counted as one: `policy`. Limits that are written inline are named by their notation. A program that builds those from
its input could create any number of them, so after `MAX_RULE_LABELS` pairs the rest is counted as `other`.
"""

from __future__ import annotations

from crestgate.core.bounded_cache import add_bounded
from crestgate.core.bounds import is_text
from crestgate.http.headers import general_name
from crestgate.runtime.fork_safety import fork_safe_lock

__all__ = ["MAX_RULE_LABELS", "NO_RULE", "OTHER", "RuleLabels", "rule_label"]

MAX_RULE_LABELS = 1_000
"""Pairs of rule and dimension."""
MAX_CACHED = 10_000
NO_RULE = "no_rule"
"""Label of decisions to which no rule applied."""
OTHER = "other"


def rule_label(name: str) -> str:
    """A rule without the key it was created for.

    >>> rule_label("gold"), rule_label("override:alice:orders"), rule_label("policy:alice"), rule_label("")
    ('gold', 'override:orders', 'policy', 'no_rule')
    """
    label = general_name(name)
    if label != name:  # an id that was too long ends in a digest of the whole
        label = label.partition(":sha256:")[0]
    return label or NO_RULE


class RuleLabels:
    """The labels of one observer: a bounded set. Threads share it."""

    def __init__(self, max_labels: int = MAX_RULE_LABELS) -> None:
        self._max_labels = max_labels
        self._labels: set[tuple[str, str]] = set()
        self._by_name: dict[tuple[str, str], tuple[str, str]] = {}
        """The labels of names as they are. Names may be many, so this is cleared when it is full."""
        self._lock = fork_safe_lock()

    def get(self, name: str, dimension: str) -> tuple[str, str]:
        """The labels rule and dimension of a limit."""
        return self._by_name.get((name, dimension)) or self._add(name, dimension)

    def _add(self, name: str, dimension: str) -> tuple[str, str]:
        labels = (rule_label(name), dimension)
        with self._lock:
            if labels not in self._labels:
                if len(self._labels) >= self._max_labels or not is_text(labels[0]):
                    labels = (OTHER, dimension)
                else:
                    self._labels.add(labels)
            return add_bounded(self._by_name, (name, dimension), labels, MAX_CACHED)
