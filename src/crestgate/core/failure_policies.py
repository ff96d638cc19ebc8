"""Failure policies: what a limit does while its store is unavailable. See limiter/failure_policy.py."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["DEFAULT_FAILURE_POLICY", "FAILURE_POLICIES", "OnStoreError"]

OnStoreError = Literal["open", "closed", "local"]
FAILURE_POLICIES = get_args(OnStoreError)
DEFAULT_FAILURE_POLICY: OnStoreError = "open"
