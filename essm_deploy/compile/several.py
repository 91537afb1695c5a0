"""The answer of several runs in one command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from essm_deploy.errors import EssmError

STATUSES = ("ok", "estimated", "inconclusive", "nothing_fits", "failed")
"""From best to worst. What leaves a device without a bundle is worse than a bundle that a larger one might have replaced."""


def together(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document of several; its status is the worst of theirs."""
    return {"schema_version": "1.0", "status": max((run["status"] for run in runs), key=STATUSES.index), "runs": list(runs)}


def failure_json(error: EssmError, target: str) -> dict[str, Any]:
    """The document of a run that failed while others went on; `exit_code` is what it alone would have ended with."""
    return {
        "schema_version": "1.0",
        "status": "failed",
        "target": target,
        "budget": None,
        "error": type(error).__name__,
        "message": str(error),
        "exit_code": error.exit_code,
    }
