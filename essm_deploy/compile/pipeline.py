"""Build and profile: one named step a line, for one request or for several in one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from essm_deploy.bundle.estimated import build_estimated
from essm_deploy.bundle.writer import is_bundle
from essm_deploy.compile.bundling import question, write_choice
from essm_deploy.compile.job import Job, key_of, look_up, look_up_all, run_name
from essm_deploy.compile.request import Progress, Request
from essm_deploy.compile.several import failure_json, together
from essm_deploy.compile.sweeps import Sweeps, rebuild, sweeping
from essm_deploy.errors import EssmError, OutputError, PrecisionError, UnavailableError
from essm_deploy.files import check_replaceable
from essm_deploy.profiling.choose import Choice, choose
from essm_deploy.profiling.quality import better_below
from essm_deploy.profiling.report import candidate_json, choice_json, quality_json
from essm_deploy.profiling.spread import Spread, measure_spread
from essm_deploy.profiling.sweep import Sweep
from essm_deploy.runtime.cuda import describe_devices

Document = dict[str, Any]
Answer = Callable[[Job, Sweeps], Document]


def build(request: Request, output: Path, progress: Progress) -> Document:
    """Choose the largest budget that fits and write its bundle to `output`; returns the document of `--format json`.

    `status` is ok, nothing_fits (no bundle), estimated (the device is not here, so nothing was measured) or inconclusive: the
    bundle of the largest budget that surely fits, or of the smallest one where none surely does, or of one that fitted until it
    was built anew. Raises UsageError, UnavailableError, BuildError, VerificationError and WorkerError; `output` is then as it
    was.
    """
    job = look_up(request, progress)
    check_replaceable(output, is_bundle)
    with sweeping([job]) as sweeps:
        document = _in_some_precision(partial(_build, output=output), job, sweeps)
        sweeps.finish()
    return document


def build_all(requests: Sequence[Request], folder: Path, progress: Progress) -> Document:
    """The same for several targets and limits, each bundle in `folder`/TARGET[-REQUIREMENT]; {schema_version, status, runs}.

    Everything is looked up before anything is built: what is wrong there is raised. A run that fails after that has a document
    of status failed, and the others go on.
    """
    jobs = look_up_all(requests, progress)
    if is_bundle(folder):
        raise OutputError(f"{folder}: is a bundle; several go into a directory of their own, choose another with -o")
    outputs = [folder / run_name(job) for job in jobs]
    for output in outputs:
        check_replaceable(output, is_bundle)
    return _all(jobs, [partial(_build, output=output) for output in outputs])


def profile(request: Request, progress: Progress) -> Document:
    """Measure the candidates and return the document with every sample; nothing is written but the journal."""
    job = look_up(request, progress)
    _check_here(job)
    with sweeping([job]) as sweeps:
        document = _in_some_precision(_profile, job, sweeps)
        return _with_records([document], sweeps.finish())[0]


def profile_all(requests: Sequence[Request], progress: Progress) -> Document:
    """The same for several targets and limits; {schema_version, status, runs} as in `build_all`."""
    jobs = look_up_all(requests, progress)
    for job in jobs:
        _check_here(job)
    return _all(jobs, [_profile] * len(jobs))


def _build(job: Job, sweeps: Sweeps, output: Path) -> Document:
    if not job.here:
        return {**build_estimated(question(job), output), **_asked(job)}
    sweep = sweeps.of(job)
    choice, spread = _choose(job, sweep)
    document = _document(job, sweep, choice, spread, samples=False)
    document["bundle"] = str(output) if choice.chosen is not None else None
    if choice.chosen is not None:
        write_choice(job, sweep, choice, output)
    return document


def _profile(job: Job, sweeps: Sweeps) -> Document:
    sweep = sweeps.of(job)
    choice, spread = _choose(job, sweep)
    return {**_document(job, sweep, choice, spread, samples=True), "observations": key_of(job)}


def _choose(job: Job, sweep: Sweep) -> tuple[Choice, Spread | None]:
    limits = job.request.limits
    choice = choose(job.candidates, limits, sweep.measure, exhaustive=job.request.exhaustive)
    return measure_spread(choice, limits, partial(rebuild, job, sweep), job.request.rebuilds)


def _all(jobs: Sequence[Job], answers: Sequence[Answer]) -> Document:
    """One document a job. What was measured is kept for the same command to resume as long as one of them has failed."""
    with sweeping(jobs) as sweeps:
        runs = [_attempted(answer, job, sweeps) for answer, job in zip(answers, jobs, strict=True)]
        failed = any(run["status"] == "failed" for run in runs)
        runs = _with_records(runs, sweeps.records() if failed else sweeps.finish())
    return together(runs)


def _attempted(answer: Answer, job: Job, sweeps: Sweeps) -> Document:
    try:
        return _in_some_precision(answer, job, sweeps)
    except EssmError as error:
        job.progress(f"{run_name(job)} failed: {error}")
        return {**failure_json(error, job.target.name), **_asked(job)}


def _in_some_precision(answer: Answer, job: Job, sweeps: Sweeps) -> Document:
    """The answer, in the other precision where the first one is not borne and there is another."""
    try:
        return answer(job, sweeps)
    except PrecisionError as error:
        return answer(job.fallen_back(error), sweeps)


def _document(job: Job, sweep: Sweep, choice: Choice, spread: Spread | None, samples: bool) -> Document:
    if choice.chosen is not None:  # a resumed sweep may know the figures of an engine that it has not built
        sweep.verified(int(choice.chosen))
    better = better_below(choice.candidates, choice.chosen) if choice.chosen is not None else None
    return {
        **choice_json(choice, job.request.limits, sweep.errors, job.target.name),
        **_asked(job),
        "better_quality_below": {"budget": better.budget, "quality": quality_json(better.quality)} if better else None,
        "spread": spread.to_json() if spread else None,
        "candidates": [candidate_json(choice, candidate, samples) for candidate in choice.candidates],
    }


def _asked(job: Job) -> Document:
    """What a document says of its question, beside target and limits."""
    request = job.request
    return {
        "model": {"name": job.checkpoint.path.resolve().name, "hash": job.hash},
        "kind": job.kind,
        "requirement": request.requirement,
        "precision": request.precision,
        "fell_back": request.fell_back,
    }


def _check_here(job: Job) -> None:
    if not job.here:
        raise UnavailableError(
            f"target {job.target.name!r} is not here ({describe_devices()}), so nothing can be measured; "
            "`essm-deploy build` chooses by estimate and says so"
        )


def _with_records(runs: Sequence[Document], records: dict[str, str | None]) -> list[Document]:
    """The path of its record in the place of a sweep's key."""
    return [{**run, "observations": records[run["observations"]]} if "observations" in run else run for run in runs]
