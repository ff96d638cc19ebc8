"""The contract on which rules apply, sentence by sentence, as cases. The notation is explained in cases.py."""

from __future__ import annotations

from unit.rules.cases import Case
from unit.rules.competing_cases import COMPETING
from unit.rules.defaults_cases import DEFAULTS
from unit.rules.matching_cases import MATCHING
from unit.rules.own_dimension_cases import OWN_DIMENSIONS

__all__ = ["CASES"]

CASES: list[Case] = [*MATCHING, *COMPETING, *DEFAULTS, *OWN_DIMENSIONS]
