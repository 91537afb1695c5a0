"""On the real device: measure a bundle that was chosen by estimate, confirm its choice or move it, and write down which.

Every engine is verified first: one that does not compute what the reference does must not be timed. Then the engines that the
limits bound are measured, one fresh process each, and the largest budget that surely fits becomes the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from essm_deploy.bundle.profile import profile_json
from essm_deploy.bundle.verify import EngineCheck, verify_bundle
from essm_deploy.errors import UnavailableError
from essm_deploy.files import write_json
from essm_deploy.profiling.choose import Choice, choose
from essm_deploy.profiling.measure import Settings, measure_engine
from essm_deploy.profiling.quality import Candidate, Quality
from essm_deploy.profiling.report import candidate_json, choice_json
from essm_deploy.profiling.verdict import Attempt, BudgetKey, Limits, Measurement
from essm_deploy.profiling.worker_process import Launcher
from essm_deploy.runtime.manifest import MANIFEST_NAME, Budget, Engine, Manifest
from essm_deploy.runtime.requirements import check_requirements
from essm_deploy.units import format_ms


def verify_on_device(
    root: Path,
    launcher: Launcher,
    settings: Settings,
    progress: Callable[[str], None],
    cuda_graph: bool | None = None,
) -> tuple[dict[str, Any], list[EngineCheck]]:
    """Verify, measure, choose again by the bundle's own limits, and replace the manifest; returns the document and the checks.

    `status` is confirmed or moved; nothing_fits (the default then stays); or inconclusive, with the largest budget that surely
    fits, or the smallest if none surely does. `cuda_graph` is how TensorRT engines are run from now on, None as the manifest
    says. Raises UnavailableError if the engines cannot run here, and what `verify_bundle` and `measure_engine` raise; the
    manifest is then as it was.
    """
    manifest, checks = verify_bundle(root, cuda_graph)
    for engine in manifest.engines:
        check_requirements(engine)
    idle = [check.engine for check in checks if check.judged != "engine"]
    if idle:
        raise UnavailableError(f"engine {idle[0]!r} cannot run on this machine, so nothing can be measured: go to the device")
    ordered = sorted(manifest.budgets, key=lambda budget: budget.order)
    bound = {budget.id: _bound_engine(manifest, budget) for budget in ordered}

    def measure(budget: BudgetKey, attempt: Attempt) -> Measurement:
        found = measure_engine(launcher, root, bound[str(budget)], settings, budget=budget, attempt=attempt)
        progress(f"{budget}: {found.latency.statistic} {format_ms(found.latency.value)}, {found.latency.samples} calls")
        return found

    candidates = [Candidate(budget.id, _quality(budget)) for budget in ordered]
    choice = choose(candidates, Limits(**manifest.limits), measure, exhaustive=True)
    default = bound[str(choice.chosen)].id if choice.chosen is not None else manifest.default
    errors = {check.engine: check.max_rel_error for check in checks}
    updated = replace(manifest, default=default, engines=_recorded(manifest, bound, choice, errors))
    write_json(root / MANIFEST_NAME, updated.to_json())
    return _document(manifest, updated, choice), checks


def _bound_engine(manifest: Manifest, budget: Budget) -> Engine:
    """The engine of a budget that the limits bound: of the default's kind and chunk."""
    default = manifest.engine(manifest.default)
    fitting = [e for e in manifest.engines if (e.budget, e.kind, e.chunk) == (budget.id, default.kind, default.chunk)]
    return fitting[0]


def _quality(budget: Budget) -> Quality | None:
    return Quality(**budget.quality) if budget.quality is not None else None


def _recorded(
    manifest: Manifest, bound: Mapping[str, Engine], choice: Choice, errors: Mapping[str, float]
) -> tuple[Engine, ...]:
    """Measured profiles in place of estimated ones, and that each engine has run here."""
    measured = {bound[str(budget)].id: found for budget, found in choice.measurements.items()}
    engines = []
    for engine in manifest.engines:
        if engine.id in measured:
            engine = replace(engine, profile=profile_json(measured[engine.id], (engine.profile or {}).get("lowering")))
        if engine.proof is not None and engine.id in errors:
            engine = replace(engine, proof={**engine.proof, "verified_on_device": {"max_rel_error": errors[engine.id]}})
        engines.append(engine)
    return tuple(engines)


def _document(before: Manifest, after: Manifest, choice: Choice) -> dict[str, Any]:
    document = choice_json(choice, Limits(**before.limits), {}, str(before.target["name"]))
    if choice.status == "ok":
        document["status"] = "confirmed" if after.default == before.default else "moved"
    document |= {"default": after.default, "default_before": before.default}
    document["candidates"] = [candidate_json(choice, candidate, samples=False) for candidate in choice.candidates]
    return document
