"""A bundle for a device that is not here: the budget is chosen by estimate, its neighbours' engines come along.

What can be proved without the device is: every graph is replayed against the float64 reference, and every engine carries the
proof of its fp32 island. What cannot is said in the manifest: `verified_on_device` is "not yet verified".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from essm_deploy.backends.base import Backend, GraphsOnly
from essm_deploy.backends.emit import Emitter, prepare
from essm_deploy.bundle.assemble import assemble
from essm_deploy.bundle.numerics import check_halves
from essm_deploy.bundle.vectors import Arrays
from essm_deploy.bundle.verify import EngineCheck
from essm_deploy.bundle.writer import BundleContent, write_bundle
from essm_deploy.checkpoint import Checkpoint
from essm_deploy.families import family_of
from essm_deploy.files import staging
from essm_deploy.graph.builder import Dim
from essm_deploy.graph.dtypes import Precision
from essm_deploy.profiling.estimate import BASIS, GPU, Efficiency, Estimate, EstimatedPlanner, Rates, estimate_graph
from essm_deploy.profiling.estimated import NOTE, choose_by_estimate, estimated_json, figures_json, with_neighbours
from essm_deploy.profiling.quality import Candidate
from essm_deploy.profiling.verdict import BudgetKey, Limits
from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.description import Target
from essm_deploy.units import format_bytes, format_ms


@dataclass(frozen=True)
class Question:
    """A build with everything looked up. `inputs` are the test vectors; `lowering` of None is chosen by estimate."""

    checkpoint: Checkpoint
    hash: str
    target: Target
    backend: Backend
    batch: Dim
    kind: str
    precision: Precision
    lowering: str | None
    limits: Limits
    candidates: Sequence[Candidate]
    inputs: Arrays
    build_config: Mapping[str, Any]
    progress: Callable[[str], None]
    efficiency: Efficiency = GPU

    @cached_property
    def planner(self) -> EstimatedPlanner:
        """Of the device's published rates."""
        return EstimatedPlanner(Rates.of(self.target), self.efficiency, self.lowering)


def build_estimated(question: Question, output: Path) -> dict[str, Any]:
    """Estimate, choose, build, replay, write; returns the document of `--format json`.

    `status` is estimated, or nothing_fits (no bundle). Raises UnavailableError, BuildError and VerificationError.
    """
    estimates = _estimates(question)
    choice = choose_by_estimate(question.candidates, question.limits, estimates)
    document = estimated_json(choice, question.limits, estimates, question.efficiency, question.target.name)
    document |= {"kind": question.kind, "precision": question.precision, "bundle": None, "verification": None}
    if choice.chosen is None:
        return document
    chosen = int(choice.chosen)
    checks = _write(question, with_neighbours(question.candidates, chosen), chosen, estimates, output)
    document["bundle"] = str(output)
    document["verification"] = {
        "max_rel_error": max(check.max_rel_error for check in checks if check.budget == f"k{chosen}"),
        "judged": sorted({check.judged for check in checks}),
        "on_device": "not yet verified",
    }
    question.progress(f"{NOTE}: {output}")
    return document


def _estimates(question: Question) -> dict[BudgetKey, Estimate]:
    """Of the call that the limits bound, from the graph of every candidate."""
    rates, estimates = Rates.of(question.target), dict[BudgetKey, Estimate]()
    with staging() as root:
        emitter = _emitter(question, root, question.candidates, GraphsOnly(question.backend.name))
        for candidate in question.candidates:
            budget = int(candidate.budget)
            one = emitter.at(budget)
            engine = one.sequence(budget) if question.kind == "sequence" else one.stream(budget, 1)
            found = estimate_graph(root / engine.files[0], rates, question.efficiency, fused=True)
            estimates[candidate.budget] = found
            memory = format_bytes(found.device_bytes)
            question.progress(f"K={budget}: {format_ms(found.latency_ms)}, {memory} (estimated for {question.target.name})")
    return estimates


def _write(
    question: Question, kept: Sequence[Candidate], chosen: int, estimates: Mapping[BudgetKey, Estimate], output: Path
) -> list[EngineCheck]:
    outputs = {f"k{c.budget}": _reference(question, int(c.budget)) for c in kept}

    def emit(root: Path) -> tuple[Engine, ...]:
        emitter = _emitter(question, root, kept, question.backend)
        engines = _engines(question, emitter, kept, estimates)
        for budget, expected in outputs.items():
            check_halves(root, engines, [e for e in engines if e.budget == budget], question.inputs, expected)
        return engines

    return write_bundle(output, _content(question, kept, chosen, outputs), emit)


def _engines(
    question: Question, emitter: Emitter, kept: Sequence[Candidate], estimates: Mapping[BudgetKey, Estimate]
) -> tuple[Engine, ...]:
    """Every engine of every budget, all streams over one state, so that the device can change its mind in mid-stream."""
    built = emitter.bundle([int(c.budget) for c in kept])
    question.progress(f"{len(built)} engines built with {question.backend.name}")
    return tuple(_profiled(question, engine, estimates, emitter) for engine in built)


def _profiled(question: Question, engine: Engine, estimates: Mapping[BudgetKey, Estimate], emitter: Emitter) -> Engine:
    """The engine that the limits bound carries its estimate."""
    if engine.kind != question.kind or (engine.chunk or 1) != 1:
        return engine
    figures = {**figures_json(estimates[int(engine.budget.removeprefix("k"))]), "efficiency": question.efficiency.to_json()}
    return replace(engine, profile={"basis": BASIS, "note": NOTE, "lowering": emitter.lowerings[engine.id], **figures})


def _emitter(question: Question, root: Path, candidates: Sequence[Candidate], backend: Backend) -> Emitter:
    budgets = [int(c.budget) for c in candidates]
    return prepare(root, question.checkpoint, budgets, question.batch, backend, question.planner, question.precision)


def _reference(question: Question, budget: int) -> Arrays:
    family = family_of(question.checkpoint)
    return family.reference(family.slice(question.checkpoint, budget), question.inputs)


def _content(question: Question, kept: Sequence[Candidate], chosen: int, outputs: Mapping[str, Arrays]) -> BundleContent:
    return assemble(
        checkpoint=question.checkpoint,
        content_hash=question.hash,
        target=question.target,
        kept=kept,
        chosen=chosen,
        kind=question.kind,
        precision=question.precision,
        limits=question.limits,
        build_config=question.build_config,
        inputs=question.inputs,
        outputs=outputs,
    )
