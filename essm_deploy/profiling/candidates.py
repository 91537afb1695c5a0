"""Which budgets may be chosen, and what each is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from essm_deploy.checkpoint import Checkpoint
from essm_deploy.errors import CheckpointError, UsageError
from essm_deploy.families.base import ModelConfig
from essm_deploy.profiling.quality import Candidate, Quality

Asked = Literal["trained", "all"] | tuple[int, ...]

_DIRECTIONS: dict[str, Literal["higher", "lower"]] = {"maximize": "higher", "minimize": "lower"}


def candidates_of(checkpoint: Checkpoint, config: ModelConfig, asked: Asked) -> list[Candidate]:
    """The budgets asked for, ascending: the trained ones, every integer, or a list of one's own (UsageError out of range)."""
    budgets: Sequence[int] = config.budgets
    if asked == "all":
        budgets = range(1, config.k_max + 1)
    elif asked != "trained":
        budgets = sorted(set(asked))
    wrong = [k for k in budgets if not 1 <= k <= config.k_max]
    if wrong:
        raise UsageError(f"budget {wrong[0]} is out of range for {checkpoint.path}; expected 1 to {config.k_max}")
    return [Candidate(k, quality_at(checkpoint, k)) for k in budgets]


def quality_at(checkpoint: Checkpoint, budget: int) -> Quality | None:
    """What quality.json says of a budget; None where it was never measured. Retention is against the largest budget there."""
    if checkpoint.quality is None:
        return None
    metric, direction, values = _read(checkpoint, checkpoint.quality)
    if budget not in values:
        return None
    value, full = values[budget], values[max(values)]
    better, worse = (value, full) if direction == "higher" else (full, value)
    return Quality(metric, value, direction, better / worse if worse > 0 else None)


def _read(checkpoint: Checkpoint, raw: Mapping[str, Any]) -> tuple[str, Literal["higher", "lower"], dict[int, float]]:
    where = checkpoint.path / "quality.json"
    direction = _DIRECTIONS.get(str(raw.get("direction")))
    if direction is None:
        raise CheckpointError(f"{where}: direction is {raw.get('direction')!r}; expected maximize or minimize")
    try:
        values = {int(k): float(v) for k, v in dict(raw["budgets"]).items()}
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f'{where}: budgets must map each budget to a number, as in {{"4": 0.9}}') from None
    return str(raw.get("metric", "quality")), direction, values
