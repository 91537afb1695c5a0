"""From a choice to what goes into its bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from essm_deploy.backends.emit import Emitter, engine_id
from essm_deploy.bundle.vectors import Arrays
from essm_deploy.bundle.writer import BundleContent
from essm_deploy.checkpoint import Checkpoint
from essm_deploy.profiling.quality import Candidate
from essm_deploy.profiling.report import latency_json, memory_json, quality_json
from essm_deploy.profiling.verdict import Limits, Measurement
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
    checkpoint: Checkpoint,
    content_hash: str,
    target: Target,
    candidate: Candidate,
    limits: Limits,
    build_config: Mapping[str, Any],
    kind: str,
    inputs: Arrays,
    outputs: Arrays,
    precision: str = "fp32",
) -> BundleContent:
    """Everything but the engines, for the one budget that was chosen by calls of `kind`."""
    name = f"k{candidate.budget}"
    budget = Budget(name, {"k": int(candidate.budget)}, 0, quality_json(candidate.quality))
    return BundleContent(
        model=model_info(checkpoint, content_hash),
        target=json.loads(target.model_dump_json()),
        overflow=str(checkpoint.config["overflow"]),
        limits=asdict(limits),
        budgets=(budget,),
        default=engine_id(int(candidate.budget), kind, None if kind == "sequence" else 1, precision),
        build_config=build_config,
        card=checkpoint.card,
        inputs=inputs,
        outputs={name: outputs},
    )


def emit_measured(emitter: Emitter, kind: str, measurement: Measurement) -> tuple[Engine, ...]:
    """The engines of the chosen budget; the one that was measured, first of its kind, carries its measurement."""
    engines = list(emitter.bundle(int(measurement.budget)))
    at = next(i for i, engine in enumerate(engines) if engine.kind == kind)
    profile = {
        "basis": measurement.latency.basis,
        "latency_ms": latency_json(measurement),
        "memory": memory_json(measurement),
        "warnings": list(measurement.warnings),
        "lowering": emitter.lowerings[engines[at].id],
        "environment": measurement.environment,
    }
    engines[at] = replace(engines[at], profile=profile)
    return tuple(engines)
