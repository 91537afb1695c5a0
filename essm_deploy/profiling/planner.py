"""Planning by measurement: of the lawful lowerings with the best estimates, the fastest one on the device is taken.

What is timed is one layer's convolution and projection, gates included, in an engine of its own. The answer is kept in the
user's cache under everything that it depends on, so that the next build measures nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

from essm_deploy import __version__
from essm_deploy.backends.base import Backend
from essm_deploy.errors import EssmError
from essm_deploy.files import staging, write_json
from essm_deploy.graph.builder import GraphBuilder, save_model
from essm_deploy.graph.weights import data_file
from essm_deploy.profiling.facts import DeviceFacts
from essm_deploy.profiling.measure import Settings, measure_engine
from essm_deploy.profiling.observations import sweep_key, sweeps_directory
from essm_deploy.profiling.verdict import Attempt
from essm_deploy.profiling.worker_process import Launcher
from essm_deploy.runtime.manifest import Engine, TensorInfo
from essm_deploy.spectral.lowerings.base import ConvProblem, Lowering
from essm_deploy.spectral.planning import estimate, lawful_lowerings
from essm_deploy.units import format_ms

_MEASURED = 3
_WORTH = 2.0
"""Only the first few are measured, and none whose estimate is twice the best one's."""

_QUICK = Settings(statistic="p50", min_samples=20, min_seconds=0.2, max_seconds=2.0, warmup_seconds=0.4)


@dataclass
class MeasuredPlanner:
    """Call it with a problem. `records` fills with what was measured, winners and losers, by problem.

    `facts` of the launcher's device, where somebody has them already.
    """

    launcher: Launcher
    backend: Backend
    target: str
    threads: int | None
    progress: Callable[[str], None]
    name: str | None = None
    records: dict[str, dict[str, float]] = field(default_factory=dict)
    facts: DeviceFacts | None = None

    def __call__(self, problem: ConvProblem) -> Lowering:
        """The fastest lowering on the device; BuildError if there is no lawful one of that name."""
        lawful = lawful_lowerings(problem, self.name)
        best = estimate(lawful[0], problem)
        few = [entry for entry in lawful[:_MEASURED] if estimate(entry, problem) <= _WORTH * best]
        if len(few) == 1:
            return few[0]
        times = self._times(problem, few)
        self.records[_title(problem)] = times
        return min(few, key=lambda lowering: times[lowering.label])

    def _times(self, problem: ConvProblem, few: list[Lowering]) -> dict[str, float]:
        path = sweeps_directory().with_name("plans") / f"{self._key(problem, few)}.json"
        stored = _read(path, {lowering.label for lowering in few})
        if stored is not None:
            return stored
        times = {lowering.label: self._measure(problem, lowering) for lowering in few}
        shown = ", ".join(f"{label} {format_ms(ms)}" for label, ms in sorted(times.items(), key=lambda item: item[1]))
        self.progress(f"planned {_title(problem)}: {shown} (one layer, p50)")
        with contextlib.suppress(EssmError, OSError):  # a plan that cannot be kept is measured again
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"schema_version": "1.0", "p50_ms": times})
        return times

    def _measure(self, problem: ConvProblem, lowering: Lowering) -> float:
        with staging() as folder:
            engine = self.backend.build(folder, layer_engine(folder, problem, lowering, self.backend))
            settings = Settings(**{**_QUICK.to_json(), "threads": self.threads})
            return measure_engine(self.launcher, folder, engine, settings, budget=0, attempt=Attempt()).latency.p50

    def _key(self, problem: ConvProblem, few: list[Lowering]) -> str:
        return sweep_key(
            filters=hashlib.sha256(problem.filters.tobytes()).hexdigest(),
            shape=[problem.length, problem.width, problem.channels, str(problem.batch)],
            lowerings=[lowering.label for lowering in few],
            target=self.target,
            backend=self.backend.name,
            threads=self.threads,
            device=(self.facts or DeviceFacts(self.launcher)).known,
            versions=[__version__, onnx.__version__, onnxruntime.__version__],
        )


def layer_engine(root: Path, problem: ConvProblem, lowering: Lowering, backend: Backend) -> Engine:
    """One layer's gated convolution and projection at batch 1, with weights of no meaning."""
    k, d, length = problem.channels, problem.width, problem.length
    problem = ConvProblem(problem.filters, length, d, 1)
    rng = np.random.default_rng(0)
    with data_file(root, "layer.bin") as file:
        b = GraphBuilder("layer", {}, file)
        u = b.input("u", TensorProto.FLOAT, [1, length, d])
        gates = b.op("Reshape", b.input("gates", TensorProto.FLOAT, [1, length, k]), b.ints(-1, k))
        with b.scope("spectral"):
            gated = lowering.emit(b, problem, u, gates)
        weights = rng.standard_normal((k * d, d)) / np.sqrt(k * d)
        rows = b.op("MatMul", gated, b.constant(weights.astype(np.float32), "projection"))
        b.output("y", b.op("Reshape", rows, b.ints(1, length, d)), TensorProto.FLOAT, [1, length, d])
        model = b.model()
    save_model(model, root / "layer.onnx")
    inputs = (TensorInfo("u", "float32", (1, length, d)), TensorInfo("gates", "float32", (1, length, k)))
    outputs = (TensorInfo("y", "float32", (1, length, d)),)
    files = ("layer.onnx", "layer.bin")
    return Engine("layer", f"k{k}", "sequence", backend.name, "fp32", files, inputs, outputs, backend.requirements())


def _title(problem: ConvProblem) -> str:
    return f"K={problem.channels}, {problem.length} tokens, width {problem.width}"


def _read(path: Path, labels: set[str]) -> dict[str, float] | None:
    try:
        times: Any = json.loads(path.read_text())["p50_ms"]
        found = {str(label): float(ms) for label, ms in times.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.keys() == labels else None
