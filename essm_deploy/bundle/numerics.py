"""What half precision does to an engine, checked when it is built: parity with the reference, range, and who is to blame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from essm_deploy.bundle.judges import GraphSession, evaluated_by, graph_of, runs_here, shortened, unoptimized
from essm_deploy.bundle.vectors import Arrays, bound_of, engine_error, relative_error
from essm_deploy.bundle.verify import check_engine
from essm_deploy.errors import PrecisionError
from essm_deploy.graph.dtypes import HALF, largest, onnx_type
from essm_deploy.graph.evaluate import Evaluator
from essm_deploy.runtime.manifest import Engine

Array = NDArray[Any]

_ADVICE = "choose another --precision, or allow one with --precision-fallback"


@dataclass
class Ranges:
    """The largest magnitude of every half result, before it was rounded, by node. PrecisionError at the first overflow."""

    engine: str
    peaks: dict[str, float] = field(default_factory=dict)

    def watch(self, node: onnx.NodeProto, computed: Array, held: Array) -> None:
        """What the evaluator calls."""
        peak = float(np.max(np.abs(computed), initial=0.0))
        data_type = onnx_type(held.dtype)
        if data_type in HALF:
            self.peaks[node.name] = max(peak, self.peaks.get(node.name, 0.0))
        if not (np.isfinite(peak) and np.isfinite(held).all()):
            kind = onnx.TensorProto.DataType.Name(data_type)
            raise PrecisionError(
                f"engine {self.engine}: node {node.name} ({node.op_type}) reaches {peak:.3g} on the test vectors, and "
                f"{kind} ends at {largest(data_type):.3g}; {_ADVICE}"
            )


@dataclass(frozen=True)
class Numerics:
    """What was found: the relative error, and the half result that comes closest to the end of its type's range.

    `peak_node` is None where nothing is of a half type.
    """

    engine: str
    max_rel_error: float
    bound: float
    peak: float
    peak_node: str | None


def check_numerics(root: Path, engines: Iterable[Engine], engine: Engine, inputs: Arrays, expected: Arrays) -> Numerics:
    """Play the test vectors through an engine's graph, rounding as its types say.

    fp32 and fp16 graphs are run by ONNX Runtime too, unoptimised, and the worse of the two errors counts. PrecisionError names
    the node that overflows or, above the bound, the first one whose result is off by more than that.
    """
    engines, ranges, opened = list(engines), Ranges(engine.id), dict[str, GraphSession]()
    inputs, expected = shortened(engine, inputs, expected)
    error = engine_error(root, engines, engine, inputs, expected, evaluated_by(ranges.watch, opened))
    if engine.precision != "bf16":
        error = max(error, engine_error(root, engines, engine, inputs, expected, unoptimized))
    bound = bound_of(engine)
    if not error <= bound:
        last = opened[engine.id].last if engine.id in opened else {}
        culprit = blame(root / graph_of(engine).files[0], last, bound) if last else "no call of it was played"
        off = f"differs from the float64 reference by {error:.1e} (relative), more than {bound:.0e}"
        raise PrecisionError(f"engine {engine.id} {off}: {culprit}; {_ADVICE}")
    peak_node = max(ranges.peaks, key=lambda name: ranges.peaks[name], default=None)
    return Numerics(engine.id, error, bound, ranges.peaks[peak_node] if peak_node else 0.0, peak_node)


def check_built(root: Path, engines: Iterable[Engine], engine: Engine, inputs: Arrays, expected: Arrays) -> float:
    """The relative error of an engine that was just built, after everything that can be checked on this machine.

    Raises what `check_numerics` and `check_engine` raise.
    """
    engines = list(engines)
    found = check_halves(root, engines, [engine], inputs, expected)
    if found and not runs_here(root, engine):
        return found[0].max_rel_error
    return check_engine(root, engines, engine, inputs, expected).max_rel_error


def check_halves(
    root: Path, engines: Iterable[Engine], checked: Iterable[Engine], inputs: Arrays, expected: Arrays
) -> list[Numerics]:
    """`check_numerics` of those of `checked` that are of half precision; `engines` are all that are there."""
    engines = list(engines)
    return [check_numerics(root, engines, engine, inputs, expected) for engine in checked if engine.precision != "fp32"]


def blame(graph: Path, inputs: Arrays, bound: float) -> str:
    """The first node whose half result is off by more than `bound` from what the same weights give unrounded, or the worst.

    Where none is, the weights' own rounding is what the model does not bear.
    """
    exact: dict[str, Array] = {}
    errors: dict[str, float] = {}

    def keep(node: onnx.NodeProto, computed: Array, held: Array) -> None:
        exact[node.name] = computed

    def compare(node: onnx.NodeProto, computed: Array, held: Array) -> None:
        if onnx_type(held.dtype) in HALF and node.op_type != "Cast" and exact[node.name].any():
            errors[node.name] = relative_error(held, np.asarray(exact[node.name], np.float64))

    Evaluator(graph, rounding=False).run(inputs, keep)
    Evaluator(graph).run(inputs, compare)
    if not errors:
        return "no node computes in half precision"
    first = next((name for name, error in errors.items() if error > bound), None)
    worst = max(errors, key=lambda name: errors[name])
    if first is None:
        return f"node {worst} rounds most ({errors[worst]:.1e}), and the weights round too"
    return f"node {first} is the first to be off by more ({errors[first]:.1e})"
