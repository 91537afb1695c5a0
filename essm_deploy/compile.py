"""The pipeline as one function: checkpoint -> candidates -> engines -> measurements -> the largest budget -> bundle."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import onnx
import onnxruntime

from essm_deploy import __version__
from essm_deploy.backends import find_backend
from essm_deploy.backends.base import Backend
from essm_deploy.backends.emit import prepare
from essm_deploy.bundle.assemble import assemble, emit_measured
from essm_deploy.bundle.estimated import Question, build_estimated
from essm_deploy.bundle.numerics import check_built, check_halves
from essm_deploy.bundle.writer import is_bundle, write_bundle
from essm_deploy.checkpoint import Checkpoint, content_hash
from essm_deploy.errors import PrecisionError, UnavailableError, UsageError
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.files import check_replaceable
from essm_deploy.graph.builder import Dim
from essm_deploy.graph.dtypes import Precision
from essm_deploy.profiling.candidates import Asked, candidates_of, quality_at
from essm_deploy.profiling.choose import Choice, choose
from essm_deploy.profiling.measure import Settings
from essm_deploy.profiling.observations import Journal, open_journal, sweep_key
from essm_deploy.profiling.planner import MeasuredPlanner
from essm_deploy.profiling.quality import Candidate
from essm_deploy.profiling.report import candidate_json, choice_json
from essm_deploy.profiling.sweep import Kind, Sweep
from essm_deploy.profiling.verdict import Limits
from essm_deploy.runtime.cuda import describe_devices
from essm_deploy.runtime.manifest import Engine
from essm_deploy.targets.description import Target, find_target
from essm_deploy.targets.reach import device_here, launcher_for

Progress = Callable[[str], None]

_VECTOR_SEED = 20260122  # any fixed number: the vectors of two builds of one checkpoint are equal


@dataclass(frozen=True)
class Request:
    """What to compile, for what, and within which limits. `exhaustive` measures every candidate instead of bisecting.

    `kind` is the call that the limits bound; None is that of the task, a step of the stream for text generation and else the
    whole sequence. `keep` are budgets to bundle beside the chosen one, so that a stream can change to them. Where the model
    does not bear `precision`, `precision_fallback` is built instead, if there is one, and `fell_back` says from what, and why.
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
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class _Job:
    """A request with everything looked up."""

    request: Request
    checkpoint: Checkpoint
    hash: str
    target: Target
    backend: Backend
    batch: Dim
    kind: Kind
    planner: MeasuredPlanner
    progress: Progress


def build(request: Request, output: Path, progress: Progress) -> dict[str, Any]:
    """Choose the largest budget that fits and write its bundle to `output`; returns the document of `--format json`.

    `status` is ok, nothing_fits (no bundle), estimated (the device is not here, so nothing was measured) or inconclusive: the
    bundle of the largest budget that surely fits, or of the smallest one where none surely does.
    Raises UsageError, UnavailableError, BuildError, VerificationError and WorkerError; `output` is then as it was.
    """
    return _with_fallback(_build, request, output, progress)


def _build(request: Request, output: Path, progress: Progress) -> dict[str, Any]:
    job = _look_up(request, progress)
    check_replaceable(output, is_bundle)
    if not device_here(job.target):
        return {**build_estimated(_question(job), output), "fell_back": request.fell_back}
    with _sweep(job) as sweep:
        choice = _choose(job, sweep)
        document = _document(job, sweep, choice, samples=False)
        document["bundle"] = str(output) if choice.chosen is not None else None
        if choice.chosen is not None:
            _write(job, sweep, choice, output)
        sweep.journal.finish()
    return document


def profile(request: Request, progress: Progress) -> dict[str, Any]:
    """Measure the candidates and return the document with every sample; nothing is written but the journal."""
    return _with_fallback(_profile, request, progress)


def _profile(request: Request, progress: Progress) -> dict[str, Any]:
    job = _look_up(request, progress)
    if not device_here(job.target):
        raise UnavailableError(
            f"target {job.target.name!r} is not here ({describe_devices()}), so nothing can be measured; "
            "`essm-deploy build` chooses by estimate and says so"
        )
    with _sweep(job) as sweep:
        choice = _choose(job, sweep)
        document = _document(job, sweep, choice, samples=True)
        finished = sweep.journal.finish()
    return {**document, "observations": str(finished) if finished else None}


def _with_fallback(run: Callable[..., dict[str, Any]], request: Request, *rest: Any) -> dict[str, Any]:
    """`run(request, *rest)`, once more in the other precision where the first one is not borne and there is another."""
    try:
        return run(request, *rest)
    except PrecisionError as error:
        if request.precision_fallback is None:
            raise
        progress, instead = rest[-1], request.precision_fallback
        progress(f"not in {request.precision}: {error}")
        fell_back = {"from": request.precision, "reason": str(error)}
        return run(replace(request, precision=instead, precision_fallback=None, fell_back=fell_back), *rest)


def plan(request: Request, progress: Progress) -> dict[str, Any]:
    """What a build would do (`--dry-run`): everything is looked up and checked, nothing is measured or written."""
    job = _look_up(request, progress)
    return {
        "schema_version": "1.0",
        "status": "planned",
        "target": job.target.name,
        "backend": job.backend.name,
        "basis": "measured" if device_here(job.target) else "estimated",
        "kind": job.kind,
        "precision": request.precision,
        "limits": asdict(request.limits),
        "candidates": [c.budget for c in _candidates(job)],
        "settings": request.settings.to_json(),
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


def _look_up(request: Request, progress: Progress) -> _Job:
    target = find_target(request.target)
    for precision in (request.precision, request.precision_fallback):
        if precision is not None and precision not in target.precision:
            known = ", ".join(target.precision)
            raise UsageError(f"target {target.name!r} computes in {known}, not in {precision}: choose another --precision")
    backend = find_backend(target, request.backend, request.provider)
    checkpoint = open_checkpoint(request.checkpoint)
    config = family_of(checkpoint).config(checkpoint)
    progress(f"{checkpoint.path.name}: K up to {config.k_max}, {config.seq_len} tokens; target {target.name}, {backend.name}")
    job = _Job(
        request=request,
        checkpoint=checkpoint,
        hash=content_hash(checkpoint),
        target=target,
        backend=backend,
        batch="batch" if request.dynamic_batch else request.settings.batch,
        kind=request.kind or ("stream" if config.generative else "sequence"),
        planner=MeasuredPlanner(
            launcher_for(target), backend, target.name, request.settings.threads, progress, request.lowering
        ),
        progress=progress,
    )
    _candidates(job)  # a budget out of range is said before anything is built
    candidates_of(checkpoint, config, request.keep)
    return job


def _question(job: _Job) -> Question:
    """What a build without the device is asked."""
    return Question(
        checkpoint=job.checkpoint,
        hash=job.hash,
        target=job.target,
        backend=job.backend,
        batch=job.batch,
        kind=job.kind,
        precision=job.request.precision,
        lowering=job.request.lowering,
        limits=job.request.limits,
        candidates=_candidates(job),
        inputs=family_of(job.checkpoint).example_inputs(job.checkpoint, _vectors(job), _VECTOR_SEED),
        build_config={**_build_config(job), "basis": "estimated", "requirements": job.backend.requirements()},
        progress=job.progress,
    )


def _candidates(job: _Job) -> list[Candidate]:
    config = family_of(job.checkpoint).config(job.checkpoint)
    return candidates_of(job.checkpoint, config, job.request.budgets)


@contextmanager
def _sweep(job: _Job) -> Iterator[Sweep]:
    """A staging directory with the weights of the largest candidate, and the journal of this question."""
    budgets = [*(int(c.budget) for c in _candidates(job)), *job.request.keep]
    family = family_of(job.checkpoint)
    with open_journal(_key(job)) as journal, tempfile.TemporaryDirectory(prefix="essm-deploy-") as staging:
        _announce(job, journal)
        root = Path(staging)
        emitter = prepare(root, job.checkpoint, budgets, job.batch, job.backend, job.planner, job.request.precision)
        yield Sweep(
            emitter=emitter,
            kind=job.kind,
            launcher=job.planner.launcher,
            settings=job.request.settings,
            journal=journal,
            inputs=family.example_inputs(job.checkpoint, _vectors(job), _VECTOR_SEED),
            check=lambda engine, inputs, outputs: check_built(root, [], engine, inputs, outputs),
            progress=job.progress,
            keep=job.request.keep,
        )


def _choose(job: _Job, sweep: Sweep) -> Choice:
    try:
        return choose(_candidates(job), job.request.limits, sweep.measure, exhaustive=job.request.exhaustive)
    except KeyboardInterrupt:
        job.progress(f"interrupted; {sweep.journal.path} keeps what was measured: the same command resumes")
        raise


def _document(job: _Job, sweep: Sweep, choice: Choice, samples: bool) -> dict[str, Any]:
    if choice.chosen is not None:  # a resumed sweep may know the figures of an engine that it has not built
        sweep.verified(int(choice.chosen))
    document = choice_json(choice, job.request.limits, sweep.errors, job.target.name)
    document["precision"], document["fell_back"] = job.request.precision, job.request.fell_back
    document["candidates"] = [candidate_json(choice, c, samples) for c in choice.candidates]
    return document


def _write(job: _Job, sweep: Sweep, choice: Choice, output: Path) -> None:
    assert choice.chosen is not None
    chosen = int(choice.chosen)
    budgets = sorted({chosen, *job.request.keep})
    outputs = {f"k{budget}": sweep.expected(budget) for budget in budgets}
    content = assemble(
        checkpoint=job.checkpoint,
        content_hash=job.hash,
        target=job.target,
        kept=[Candidate(budget, quality_at(job.checkpoint, budget)) for budget in budgets],
        chosen=chosen,
        kind=job.kind,
        precision=job.request.precision,
        limits=job.request.limits,
        build_config={**_build_config(job), "plans_ms": job.planner.records},
        inputs=sweep.inputs,
        outputs=outputs,
    )

    def emit(root: Path) -> tuple[Engine, ...]:
        emitter = prepare(root, job.checkpoint, budgets, job.batch, job.backend, job.planner, job.request.precision)
        engines = emit_measured(emitter, job.kind, budgets, choice.measurements)
        for name, expected in outputs.items():
            check_halves(root, engines, [e for e in engines if e.budget == name], sweep.inputs, expected)
        return engines

    write_bundle(output, content, emit)
    job.progress(f"bundle opened and replayed by the runtime: {output}")


def _vectors(job: _Job) -> int:
    """How many test vectors; a language model's answers at every position, so that two of them say enough."""
    return 2 if family_of(job.checkpoint).config(job.checkpoint).generative else 4


def _announce(job: _Job, journal: Journal) -> None:
    if journal.resumed:
        job.progress(f"resuming an interrupted sweep: {journal.resumed} measurement(s) kept in {journal.path}")


def _build_config(job: _Job) -> dict[str, Any]:
    """Everything resolved, for the bundle's build-config.json and for the journal's key."""
    return {
        "schema_version": "1.0",
        "model": job.hash,
        "target": job.target.model_dump(),
        "backend": job.backend.name,
        "provider": job.request.provider,
        "batch": job.batch,
        "kind": job.kind,
        "lowering": job.request.lowering,
        "keep": job.request.keep,
        "precision": job.request.precision,
        "fell_back": job.request.fell_back,
        "limits": asdict(job.request.limits),
        "budgets": job.request.budgets,
        "settings": job.request.settings.to_json(),
        "versions": {
            "essm_deploy": __version__,
            "numpy": numpy.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
        },
    }


def _key(job: _Job) -> str:
    """Limits and candidates are left out: a sweep that was cut short serves any question about the same engines."""
    config = {name: value for name, value in _build_config(job).items() if name not in ("limits", "budgets")}
    return sweep_key(**config)
