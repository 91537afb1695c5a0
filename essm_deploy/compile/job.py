"""A request with everything looked up and checked: nothing is built, measured or written yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy
import onnx
import onnxruntime

from essm_deploy import __version__
from essm_deploy.backends import find_backend
from essm_deploy.backends.base import Backend
from essm_deploy.checkpoint import Checkpoint, content_hash
from essm_deploy.compile.request import Progress, Request
from essm_deploy.errors import PrecisionError, UsageError
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.families.base import Arrays, ModelConfig
from essm_deploy.graph.builder import Dim
from essm_deploy.profiling.candidates import candidates_of
from essm_deploy.profiling.facts import DeviceFacts
from essm_deploy.profiling.observations import sweep_key
from essm_deploy.profiling.planner import MeasuredPlanner
from essm_deploy.profiling.quality import Candidate
from essm_deploy.profiling.sweep import Kind
from essm_deploy.runtime.strict import JsonObject
from essm_deploy.targets.description import Target, find_target
from essm_deploy.targets.reach import device_here, launcher_for

_VECTOR_SEED = 20260122  # any fixed number: the vectors of two builds of one checkpoint are equal
_ONLY_ASKED = ("limits", "requirement", "budgets")
"""What no measurement depends on: a sweep serves any question about the same engines."""


@dataclass(frozen=True)
class Job:
    """`here`: whether the device is at hand, so that it can be measured; else its figures are estimated."""

    request: Request
    checkpoint: Checkpoint
    hash: str
    target: Target
    backend: Backend
    batch: Dim
    kind: Kind
    here: bool
    facts: DeviceFacts
    planner: MeasuredPlanner
    progress: Progress

    @property
    def config(self) -> ModelConfig:
        """The checkpoint's."""
        return family_of(self.checkpoint).config(self.checkpoint)

    @property
    def candidates(self) -> list[Candidate]:
        """The budgets that may be chosen. UsageError for one out of range."""
        return candidates_of(self.checkpoint, self.config, self.request.budgets)

    @property
    def vectors(self) -> Arrays:
        """The test vectors; a language model answers at every position, so that two of them say enough."""
        return family_of(self.checkpoint).example_inputs(self.checkpoint, 2 if self.config.generative else 4, _VECTOR_SEED)

    def fallen_back(self, error: PrecisionError) -> Job:
        """The same in the other precision. Raises the error where there is none."""
        instead = self.request.precision_fallback
        if instead is None:
            raise error
        self.progress(f"not in {self.request.precision}: {error}")
        fell_back = {"from": self.request.precision, "reason": str(error)}
        return replace(self, request=replace(self.request, precision=instead, precision_fallback=None, fell_back=fell_back))


def look_up(request: Request, progress: Progress, devices: dict[str, DeviceFacts] | None = None) -> Job:
    """Raises UsageError and UnavailableError for whatever can be known before anything is built.

    `devices`, by target, are those that other jobs have been looked up for: they are reached once for all.
    """
    target = find_target(request.target)
    _check_precision(request, target)
    backend = find_backend(target, request.backend, request.provider)
    checkpoint = open_checkpoint(request.checkpoint)
    config = family_of(checkpoint).config(checkpoint)
    progress(f"{checkpoint.path.name}: K up to {config.k_max}, {config.seq_len} tokens; target {target.name}, {backend.name}")
    kind: Kind = request.kind or ("stream" if config.generative else "sequence")
    devices = {} if devices is None else devices
    if target.name not in devices:
        devices[target.name] = DeviceFacts(launcher_for(target, progress))
    facts, threads = devices[target.name], request.settings.threads
    job = Job(
        request=request,
        checkpoint=checkpoint,
        hash=content_hash(checkpoint),
        target=target,
        backend=backend,
        batch=_batch(request, kind),
        kind=kind,
        here=device_here(target),
        facts=facts,
        planner=MeasuredPlanner(facts.launcher, backend, target.name, threads, progress, request.lowering, facts=facts),
        progress=progress,
    )
    job.candidates  # noqa: B018  # a budget out of range is said before anything is built
    candidates_of(checkpoint, config, request.keep)
    return job


def look_up_all(requests: Sequence[Request], progress: Progress) -> list[Job]:
    """All of them, before anything is built for the first. UsageError for two that nothing would tell apart.

    Where there are several targets, each says its name before every line.
    """
    devices: dict[str, DeviceFacts] = {}
    several = len({request.target for request in requests}) > 1
    jobs = [look_up(r, partial(_prefixed, progress, r.target) if several else progress, devices) for r in requests]
    names = [run_name(job) for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is asked for twice: every run of a target and a requirement needs a name of its own")
    return jobs


def run_name(job: Job) -> str:
    """`cpu`, or `cpu-realtime-keyword` where the limits have a name: tells the runs of one command apart."""
    return "-".join(name for name in (job.target.name, job.request.requirement) if name)


def build_config(job: Job) -> JsonObject:
    """Everything resolved, for the bundle's build-config.json."""
    request = job.request
    return {
        "schema_version": "1.0",
        "model": job.hash,
        "target": job.target.published(),
        "backend": job.backend.name,
        "provider": request.provider,
        "batch": job.batch,
        "kind": job.kind,
        "lowering": request.lowering,
        "keep": request.keep,
        "precision": request.precision,
        "fell_back": request.fell_back,
        "limits": asdict(request.limits),
        "requirement": request.requirement,
        "budgets": request.budgets,
        "settings": request.settings.to_json(),
        "versions": {
            "essm_deploy": __version__,
            "numpy": numpy.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
        },
    }


def key_of(job: Job) -> str:
    """The key of the job's measurements: all that a number depends on, on this machine and on the device."""
    config = {**build_config(job), "target": job.target.model_dump()}  # two hosts are two devices
    parts = {name: value for name, value in config.items() if name not in _ONLY_ASKED}
    return sweep_key(**parts, requires=job.backend.requirements(), device=job.facts.known)


def _prefixed(progress: Progress, target: str, line: str) -> None:
    progress(f"{Path(target).stem}: {line}")


def _batch(request: Request, kind: Kind) -> Dim:
    """Test vectors are replayed one by one, so a call of several rows takes an engine for any number of them."""
    several = request.settings.batch > 1
    if several and kind == "stream":
        raise UsageError(f"a stream is measured one at a time, not in a batch of {request.settings.batch}: --kind sequence is")
    return "batch" if request.dynamic_batch or several else 1


def _check_precision(request: Request, target: Target) -> None:
    for precision in (request.precision, request.precision_fallback):
        if precision is not None and precision not in target.precision:
            known = ", ".join(target.precision)
            raise UsageError(f"target {target.name!r} computes in {known}, not in {precision}: choose another --precision")
