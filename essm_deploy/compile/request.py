"""What is asked of the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from essm_deploy.graph.dtypes import Precision
from essm_deploy.profiling.candidates import Asked
from essm_deploy.profiling.measure import Settings
from essm_deploy.profiling.sweep import Kind
from essm_deploy.profiling.verdict import Limits

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to compile, for what, and within which limits. `exhaustive` measures every candidate instead of bisecting.

    `kind` is the call that the limits bound; None is that of the task, a step of the stream for text generation and else the
    whole sequence. `keep` are budgets to bundle beside the chosen one, so that a stream can change to them. Where the model
    does not bear `precision`, `precision_fallback` is built instead, if there is one, and `fell_back` says from what, and why.
    `requirement` is the name of the limits, where they have one. `rebuilds`: how often the chosen engine is built anew, to see
    the spread between builds. `wait` for a device that another sweep is measuring, instead of raising.
    """

    checkpoint: Path
    target: str
    limits: Limits = field(default_factory=Limits)
    budgets: Asked = "trained"
    exhaustive: bool = False
    keep: tuple[int, ...] = ()
    kind: Kind | None = None
    dynamic_batch: bool = False
    lowering: str | None = None
    backend: str | None = None
    provider: str | None = None
    precision: Precision = "fp32"
    precision_fallback: Precision | None = None
    fell_back: dict[str, str] | None = None
    requirement: str | None = None
    rebuilds: int = 0
    wait: bool = False
    settings: Settings = field(default_factory=Settings)
