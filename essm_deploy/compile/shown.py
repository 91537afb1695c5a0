"""What is said without measuring anything: what a build would do, and what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from essm_deploy.checkpoint import content_hash
from essm_deploy.compile.job import Job, look_up, look_up_all
from essm_deploy.compile.request import Progress, Request
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.profiling.candidates import quality_at


def plan(request: Request, progress: Progress) -> dict[str, Any]:
    """What a build would do (`--dry-run`): everything is looked up and checked, nothing is measured or written."""
    return _plan(look_up(request, progress))


def plan_all(requests: Sequence[Request], progress: Progress) -> dict[str, Any]:
    """The same for several targets and limits: {schema_version, status, runs}."""
    runs = [_plan(job) for job in look_up_all(requests, progress)]
    return {"schema_version": "1.0", "status": "planned", "runs": runs}


def _plan(job: Job) -> dict[str, Any]:
    return {
        "schema_version": "1.0",
        "status": "planned",
        "target": job.target.name,
        "requirement": job.request.requirement,
        "backend": job.backend.name,
        "basis": "measured" if job.here else "estimated",
        "kind": job.kind,
        "precision": job.request.precision,
        "limits": asdict(job.request.limits),
        "candidates": [candidate.budget for candidate in job.candidates],
        "settings": job.request.settings.to_json(),
    }


def describe_checkpoint(path: Path) -> dict[str, Any]:
    """What `inspect` shows of a checkpoint: its config, and size and quality at every trained budget."""
    checkpoint = open_checkpoint(path)
    family = family_of(checkpoint)
    config = family.config(checkpoint)
    keys = ("model_type", "task", "seq_len", "k_max", "overflow", "bank")
    budgets = []
    for k in config.budgets:
        quality, parameters = quality_at(checkpoint, k), family.parameter_count(checkpoint, k)
        budgets.append(
            {
                "budget": k,
                "parameters": parameters,
                "weight_bytes": 4 * parameters,
                "quality": quality.value if quality else None,
            }
        )
    metric = (checkpoint.quality or {}).get("metric")
    shown = {key: checkpoint.config[key] for key in keys}
    return {
        "kind": "checkpoint",
        "schema_version": "1.0",
        **shown,
        "hash": content_hash(checkpoint),
        "metric": metric,
        "budgets": budgets,
    }
