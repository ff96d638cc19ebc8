"""OpenAPI of explanations: see rules/explanation_data.py for what builds them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from crestgate.core.pressure import NORMAL
from crestgate.rules.explanation import MAX_RULES, RuleStatus
from crestgate.service.admin.models import Model
from crestgate.service.admin.responses import ref

__all__ = ["EXPLAIN_MODELS"]


class ExplainedCounter(Model):
    """A counter that a check of this request would use, as it is now."""

    key: Annotated[str, Field(description="The subject, as logs show it: see `logs.keys` of the settings.")]
    limit: int
    remaining: int
    used: Annotated[int, Field(description="limit − remaining.")]
    reset_after: Annotated[float, Field(description="Seconds until the counter is fully reset.")]
    state: Annotated[Literal["normal", "warning", "throttled"], Field(examples=[NORMAL])]
    store: Annotated[str, Field(description="Where it is, without any password.")]


class ExplainedRule(Model):
    """One rule, or one plan that the request names, and what became of it."""

    rule_id: str
    name: str
    dimension: str | list[str]
    identifier: Annotated[
        str | list[str], Field(description="A digest in place of an API key; for a list of dimensions `*` or a list.")
    ]
    endpoint_pattern: str
    method: str
    tier: str
    mode: Literal["enforce", "shadow", "disabled"]
    limit: Annotated[str, Field(examples=["100/minute using sliding_window_counter"])]
    lease: Annotated[bool, Field(description="Only of a limit with leases: true.")] = False
    status: RuleStatus
    reason: str
    lost_to: Annotated[str | None, Field(description="The rule_id of the winner of its slot.")]
    counter: Annotated[
        ExplainedCounter | None, Field(description="null unless it applies, and while its store is unavailable.")
    ]


class ExplainResponse(Model):
    """Why a check would be decided as it would be."""

    decision: Annotated[Any, WithJsonSchema({"allOf": [ref("DecisionResponse")]})]
    rules: Annotated[
        list[ExplainedRule],
        Field(
            max_length=MAX_RULES,
            description="Those that apply in the order of the chain, then shadow rules, rules that lost, near misses.",
        ),
    ]
    considered: Annotated[int, Field(description="How many rules were examined.")]
    truncated: Annotated[bool, Field(description="Whether `rules` leaves some of them out.")]
    store: Annotated[str, Field(description="Where the counters are, without any password.")]
    changes: Annotated[list[str], Field(description="What would change the decision; each is enough by itself.")]


EXPLAIN_MODELS: tuple[type[BaseModel], ...] = (ExplainResponse,)
