"""From a choice to what goes into its bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from essm_deploy.backends.emit import Emitter, engine_id
from essm_deploy.bundle.profile import profile_json
from essm_deploy.bundle.vectors import Arrays
from essm_deploy.bundle.writer import BundleContent
from essm_deploy.checkpoint import Checkpoint
from essm_deploy.profiling.quality import Candidate
from essm_deploy.profiling.report import quality_json
from essm_deploy.profiling.verdict import BudgetKey, Limits, Measurement
from essm_deploy.runtime.manifest import Budget, Engine, ModelInfo
from essm_deploy.targets.description import Target


def model_info(checkpoint: Checkpoint, content_hash: str) -> ModelInfo:
    """What an app needs to know of the model."""
    config = checkpoint.config
    return ModelInfo(
        name=checkpoint.path.resolve().name,
        family=str(config["model_type"]),
        task=str(config["task"]),
        hash=content_hash,
        id2label=tuple((config.get("id2label") or {}).values()),
        frontend=config.get("frontend"),
    )


def assemble(
    *,
    checkpoint: Checkpoint,
    content_hash: str,
    target: Target,
    kept: Sequence[Candidate],
    chosen: int,
    kind: str,
    precision: str,
    limits: Limits,
    build_config: Mapping[str, Any],
    inputs: Arrays,
    outputs: Mapping[str, Arrays],
) -> BundleContent:
    """Everything but the engines. `kept` are the budgets, ascending; `chosen`, by calls of `kind`, is the default."""
    budgets = [Budget(f"k{c.budget}", {"k": int(c.budget)}, order, quality_json(c.quality)) for order, c in enumerate(kept)]
    return BundleContent(
        model=model_info(checkpoint, content_hash),
        target=target.published(),
        overflow=str(checkpoint.config["overflow"]),
        limits=asdict(limits),
        budgets=tuple(budgets),
        default=engine_id(chosen, kind, None if kind == "sequence" else 1, precision),
        build_config=build_config,
        card=checkpoint.card,
        inputs=inputs,
        outputs=outputs,
    )


def emit_measured(
    emitter: Emitter, kind: str, budgets: Sequence[int], measurements: Mapping[BudgetKey, Measurement]
) -> tuple[Engine, ...]:
    """The engines of every budget; those that were measured, the first of their kind, carry their measurement."""
    engines, seen = [], set[str]()
    for engine in emitter.bundle(budgets):
        measurement = measurements.get(int(engine.budget.removeprefix("k")))
        if engine.kind == kind and engine.budget not in seen and measurement is not None:
            engine = replace(engine, profile=profile_json(measurement, emitter.lowerings[engine.id]))
            seen.add(engine.budget)
        engines.append(engine)
    return tuple(engines)
