"""`load(path, calibrate=True)`: which of a bundle's budgets this device affords, measured once and remembered.

A bundle that was built without its device holds the estimated budget and its neighbours. Here each of them is compared with the
test vectors, measured in a fresh process, as `essm-deploy verify --on-device` does, and the largest that surely meets every
limit of the manifest is used. The manifest stays as it was: the answer lies beside it (see calibration.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from essm_deploy.errors import IntegrityError, UnavailableError, VerificationError, WorkerError
from essm_deploy.runtime.calibration import key_of, read_record, write_record
from essm_deploy.runtime.fresh import ask_worker
from essm_deploy.runtime.manifest import Budget, Engine, Manifest
from essm_deploy.runtime.order import bounds, quantile
from essm_deploy.runtime.requirements import check_requirements
from essm_deploy.runtime.strict import JsonObject
from essm_deploy.runtime.tensors import LENGTHS
from essm_deploy.runtime.vectors import VECTORS, Arrays, bound_of, read_vectors, relative_error
from essm_deploy.runtime.wire import decode_arrays, encode_arrays

Side = Literal["fits", "exceeds", "unclear"]

SETTINGS: JsonObject = {
    "warmup": {"max_seconds": 2.0, "window": 20, "tolerance": 0.03},
    "min_samples": 300,
    "min_seconds": 1.0,
    "max_seconds": 8.0,
}
"""Those of `verify --on-device`; a second look takes three times as long."""

_FRACTION, _CONFIDENCE, _LOOKS = 0.95, 0.95, 2
_LONGER = 3.0
_TIMEOUT = 600.0
_BUSY = 0.05
"""A process that waited for a processor for longer says nothing against an engine whose fastest call meets the limit."""

_TOKENS = 64
"""How much of a long vector a stream is played; its first outputs do not depend on what comes later."""


@dataclass
class _Candidate:
    budget: Budget
    engine: Engine
    side: Side = "exceeds"
    reason: str = ""
    figures: JsonObject = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        said = {"id": self.engine.id, "budget": self.budget.id, "side": self.side, "reason": self.reason}
        return {**said, **self.figures}


def calibrated(root: Path, manifest: Manifest, threads: int | None = None) -> JsonObject:
    """The record that holds for this device: the one that lies there, or a new one. Its `default` is the engine to use.

    `status` is confirmed or moved; nothing_fits, with the manifest's own default; or inconclusive, with the largest engine that
    surely fits, or the smallest if none surely does. `kept` is false where the record could not be written.
    Raises UnavailableError if the engines cannot run here, and VerificationError if one computes something else than the
    reference does.
    """
    candidates = _candidates(manifest)
    for candidate in candidates:
        check_requirements(candidate.engine)
    key = key_of(root, candidates[0].engine, threads, SETTINGS)
    known = read_record(root, key, {candidate.engine.id: candidate.engine for candidate in candidates})
    if known is not None:
        return {**known, "kept": True}
    vectors = _vectors(root, manifest)
    for candidate in candidates:
        candidate.figures["max_rel_error"] = _check(root, candidate.engine, *vectors, threads)
        _measure(root, manifest.limits, candidate, threads)
    record = {"basis": "measured", "key": key, "limits": manifest.limits, **_choose(manifest, candidates)}
    return {**record, "kept": write_record(root, record)}


def _candidates(manifest: Manifest) -> list[_Candidate]:
    """The engines that the limits bound, of the default's kind and chunk, one a budget, ascending, as far as quality admits."""
    default, found = manifest.engine(manifest.default), []
    for budget in sorted(manifest.budgets, key=lambda budget: budget.order):
        same = (budget.id, default.kind, default.chunk)
        engine = next((e for e in manifest.engines if (e.budget, e.kind, e.chunk) == same), None)
        if engine is not None and (engine is default or _good_enough(budget, manifest.limits)):
            found.append(_Candidate(budget, engine))
    return found


def _good_enough(budget: Budget, limits: JsonObject) -> bool:
    """Whether a budget has the quality asked for; one whose quality nobody measured has not, if any was asked for."""
    quality = budget.quality or {}
    least, retention = limits.get("min_quality"), limits.get("min_retention")
    if retention is not None and not (quality.get("retention") or 0.0) >= retention:
        return False
    if least is None:
        return True
    value = quality.get("value")
    return value is not None and bool(value <= least if quality.get("direction") == "lower" else value >= least)


def _vectors(root: Path, manifest: Manifest) -> tuple[Arrays, dict[str, dict[str, Any]]]:
    if VECTORS not in manifest.files:
        raise IntegrityError(f"{root}: has no {VECTORS}, so nothing can be compared; build the bundle again")
    return read_vectors(root / VECTORS)


def _check(root: Path, engine: Engine, inputs: Arrays, outputs: dict[str, Any], threads: int | None) -> float:
    """The relative error of the first test vector, played in a process of its own. VerificationError above the bound."""
    expected: Arrays = outputs.get(engine.budget, {})
    if not expected:
        raise IntegrityError(f"{root / VECTORS}: holds no outputs for budget {engine.budget}")
    one, wanted = ({name: array[:1] for name, array in side.items()} for side in (inputs, expected))
    if engine.kind == "stream" and LENGTHS not in inputs:
        one, wanted = ({name: array[:, :_TOKENS] for name, array in side.items()} for side in (one, wanted))
    messages = ask_worker(
        {
            "op": "run",
            "root": str(root.resolve()),
            "engine": engine.to_json(),
            "threads": threads,
            "inputs": encode_arrays(one),
        },
        _TIMEOUT,
    )
    answer = next((message for message in messages if message["event"] == "outputs"), {})
    found = decode_arrays(answer.get("outputs"), "outputs")
    if not wanted.keys() <= found.keys():
        raise WorkerError(f"the worker answered the outputs {sorted(found)}, expected {sorted(wanted)}")
    error = max(relative_error(found[name], reference) for name, reference in wanted.items())
    if not error <= bound_of(engine):
        raise VerificationError(
            f"engine {engine.id} differs from the float64 reference by {error:.1e} (relative), more than "
            f"{bound_of(engine):.0e}; it must not be used"
        )
    return error


def _measure(root: Path, limits: JsonObject, candidate: _Candidate, threads: int | None) -> None:
    """Look once, and once more for longer where the limit lies between the bounds. An engine that fails does not fit."""
    for scale in (1.0, _LONGER):
        try:
            _look(root, limits, candidate, threads, scale)
        except UnavailableError:
            raise
        except WorkerError as error:
            candidate.side, candidate.reason = "exceeds", f"it failed: {error}"
        if candidate.side != "unclear":
            return


def _look(root: Path, limits: JsonObject, candidate: _Candidate, threads: int | None, scale: float) -> None:
    longer = {name: SETTINGS[name] * scale for name in ("min_seconds", "max_seconds")}
    request = {"op": "measure", "root": str(root.resolve()), "engine": candidate.engine.to_json(), "threads": threads}
    request |= {"batch": 1, "length": None, "seed": 0, **SETTINGS, **longer}
    request["min_samples"] = round(SETTINGS["min_samples"] * scale)
    messages = ask_worker(request, _TIMEOUT)
    samples = _samples(messages)
    loaded, memory, done = (_last(messages, event) for event in ("loaded", "memory", "done"))
    lower, upper = bounds(samples, _FRACTION, 1 - (1 - _CONFIDENCE) / _LOOKS)
    candidate.figures |= {
        "latency_ms": {
            **{f"p{round(100 * f)}": quantile(samples, f) for f in (0.5, 0.95, 0.99)},
            **{"lower": lower, "upper": upper, "statistic": "p95", "confidence": _CONFIDENCE, "samples": len(samples)},
            "basis": "measured",
        },
        "memory": {**{name: value for name, value in memory.items() if name != "event"}, "basis": "measured"},
        "environment": {
            **{name: value for name, value in loaded.items() if name not in ("event", "load_ms")},
            **{name: done[name] for name in ("execution", "device_ms") if done.get(name) is not None},
        },
    }
    busy = (done.get("waited_share") or 0.0) > _BUSY
    sides = [_latency_side(samples, lower, upper, limits, busy), _memory_side(memory, limits)]
    candidate.side, candidate.reason = _worst(sides)


def _latency_side(
    samples: list[float], lower: float | None, upper: float | None, limits: JsonObject, busy: bool
) -> tuple[Side, str]:
    limit = limits.get("max_latency_ms")
    if limit is None:
        return "fits", "no latency limit"
    if upper is not None and upper <= limit:
        return "fits", f"p95 is at most {upper:.4g} ms, the limit {limit:.4g} ms"
    if lower is not None and lower > limit and not (busy and min(samples) <= limit):
        return "exceeds", f"p95 is at least {lower:.4g} ms, the limit {limit:.4g} ms"
    return "unclear", f"p95 is about {quantile(samples, _FRACTION):.4g} ms, too close to the limit {limit:.4g} ms to call"


def _memory_side(memory: JsonObject, limits: JsonObject) -> tuple[Side, str]:
    limit = limits.get("max_memory_bytes")
    if limit is None:
        return "fits", "no memory limit"
    name = str(memory.get("bounded_by", "peak_bytes"))
    parts = name.split("+")
    known = [value for value in map(memory.get, parts) if isinstance(value, int)]
    if len(known) < len(parts):
        raise UnavailableError(f"the limit of memory bounds {name}, which cannot be read here")
    used = sum(known)
    return ("fits" if used <= limit else "exceeds"), f"{name} is {used}, the limit {limit}"


def _worst(sides: list[tuple[Side, str]]) -> tuple[Side, str]:
    order: tuple[Side, ...] = ("exceeds", "unclear", "fits")
    return min(sides, key=lambda entry: order.index(entry[0]))


def _choose(manifest: Manifest, candidates: list[_Candidate]) -> JsonObject:
    """The largest that surely fits; inconclusive if the one just above it may fit too."""
    low = max((index for index, candidate in enumerate(candidates) if candidate.side == "fits"), default=-1)
    unclear = low + 1 < len(candidates) and candidates[low + 1].side == "unclear"
    chosen = candidates[max(low, 0)].engine.id if low >= 0 or unclear else manifest.default
    if unclear:
        status = "inconclusive"
    elif low < 0:
        status = "nothing_fits"
    else:
        status = "confirmed" if chosen == manifest.default else "moved"
    return {"status": status, "default": chosen, "engines": [candidate.to_json() for candidate in candidates]}


def _samples(messages: list[JsonObject]) -> list[float]:
    """Of calls one after the other, in milliseconds; WorkerError for anything else."""
    blocks = [m.get("ms") for m in messages if m["event"] == "samples" and m.get("mode") in (None, "back_to_back")]
    values: list[Any] = [value for block in blocks for value in (block if isinstance(block, list) else [None])]
    if not values or not all(isinstance(v, (int, float)) and not isinstance(v, bool) and 0 <= v < 1e12 for v in values):
        raise WorkerError("the worker sent samples that are not durations in milliseconds")
    return [float(value) for value in values]


def _last(messages: list[JsonObject], event: str) -> JsonObject:
    return next((message for message in reversed(messages) if message["event"] == event), {})
