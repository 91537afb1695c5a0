"""From an answer to its bundle."""

from __future__ import annotations

from pathlib import Path

from essm_deploy.backends.emit import prepare
from essm_deploy.bundle.assemble import assemble, emit_measured
from essm_deploy.bundle.estimated import Question
from essm_deploy.bundle.numerics import check_halves
from essm_deploy.bundle.writer import write_bundle
from essm_deploy.compile.job import Job, build_config
from essm_deploy.profiling.candidates import quality_at
from essm_deploy.profiling.choose import Choice
from essm_deploy.profiling.quality import Candidate
from essm_deploy.profiling.sweep import Sweep
from essm_deploy.runtime.manifest import Engine


def write_choice(job: Job, sweep: Sweep, choice: Choice, output: Path) -> None:
    """Bundle the chosen budget and those to keep at `output`. Raises what `write_bundle` and `check_halves` raise."""
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
        build_config={**build_config(job), "plans_ms": job.planner.records},
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


def question(job: Job) -> Question:
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
        candidates=job.candidates,
        inputs=job.vectors,
        build_config={**build_config(job), "basis": "estimated", "requirements": job.backend.requirements()},
        progress=job.progress,
    )
