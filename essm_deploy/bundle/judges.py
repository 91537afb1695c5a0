"""Judging an engine by its graph, on a machine that cannot run the engine itself.

fp32 graphs are run by ONNX Runtime's CPU provider with graph optimisation off, fp16 and bf16 ones by the evaluator of
`graph.evaluate`. That provider has no bfloat16 kernels and, on x86, no float16 ones: it widens the weights and then removes
every Cast of an activation, without optimisation too (seen in the graph that it saves, 1.32), so that only the weights
are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from essm_deploy.bundle.vectors import Arrays, engine_error
from essm_deploy.errors import IntegrityError, UnavailableError
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.session import OrtSession, Session, SessionFactory, open_session
from essm_deploy.runtime.tensors import LENGTHS

if TYPE_CHECKING:
    from essm_deploy.graph.evaluate import Evaluator, Watch

Judged = Literal["engine", "graph"]
"""What was replayed: the engine itself, or its graph in its own types, elsewhere."""

_TOKENS = 64
"""How much of a long vector a stream's graph is played: unoptimised or in numpy, every token is slow."""


class GraphSession:
    """An evaluator with the interface of a session. `watch` sees every result, `last` keeps the inputs of the last call."""

    provider = "numpy"
    threads = 1

    def __init__(self, evaluator: Evaluator, watch: Watch | None = None) -> None:
        self.evaluator, self._watch = evaluator, watch
        self.last: dict[str, NDArray[Any]] = {}

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Compute all outputs."""
        self.last = dict(inputs)
        return self.evaluator.run(inputs, self._watch)

    def bind(self, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        """Each call of the result reads and writes the arrays."""

        def call() -> None:
            for name, value in self.run(inputs).items():
                if name in outputs:
                    np.copyto(outputs[name], value)

        return call


def check_or_judge(
    root: Path, engines: Iterable[Engine], engine: Engine, inputs: Arrays, expected: Arrays
) -> tuple[Judged, float]:
    """The error of the engine if it runs here, and else of its graph."""
    if runs_here(root, engine):
        return "engine", engine_error(root, engines, engine, inputs, expected)
    return "graph", graph_error(root, engines, engine, inputs, expected)


def runs_here(root: Path, engine: Engine) -> bool:
    """Whether this machine has what the engine's backend takes.

    ONNX Runtime is everywhere, so what its engines lack is an error and no reason to judge the graph instead.
    """
    if engine.backend == "onnxruntime":
        return engine.precision != "bf16" or "provider" in engine.requires
    try:
        open_session(root, engine)
    except UnavailableError:
        return False
    return True


def graph_error(root: Path, engines: Iterable[Engine], engine: Engine, inputs: Arrays, expected: Arrays) -> float:
    """`engine_error` of the graph that the engine was built from; IntegrityError if the bundle does not hold it."""
    opener = unoptimized if engine.precision == "fp32" else evaluated
    inputs, expected = shortened(engine, inputs, expected)
    return engine_error(root, engines, engine, inputs, expected, opener)


def shortened(engine: Engine, inputs: Arrays, expected: Arrays) -> tuple[Arrays, Arrays]:
    """For a stream that answers at every position, the first tokens of the vectors; they do not depend on later ones."""
    if engine.kind != "stream" or LENGTHS in inputs:
        return inputs, expected
    return _first_tokens(inputs), _first_tokens(expected)


def _first_tokens(arrays: Arrays) -> Arrays:
    return {name: array[:, :_TOKENS] for name, array in arrays.items()}


def unoptimized(root: Path, engine: Engine, threads: int | None) -> Session:
    """Open an engine's graph in ONNX Runtime, node by node as it is written."""
    return OrtSession(root, graph_of(engine), threads, optimized=False)


def evaluated(root: Path, engine: Engine, threads: int | None) -> Session:
    """Open an engine's graph in numpy."""
    return evaluated_by()(root, engine, threads)


def evaluated_by(watch: Watch | None = None, opened: dict[str, GraphSession] | None = None) -> SessionFactory:
    """A factory of graph sessions with that watch; `opened` fills with them by engine id."""

    def open_graph(root: Path, engine: Engine, threads: int | None) -> Session:
        try:
            from essm_deploy.graph.evaluate import Evaluator
        except ModuleNotFoundError as error:
            hint = "pip install 'essm-deploy[compiler]'"
            raise UnavailableError(
                f"engine {engine.id} cannot run here, and judging its graph takes {error.name}: {hint}"
            ) from None
        session = GraphSession(Evaluator(root / graph_of(engine).files[0]), watch)
        if opened is not None:
            opened[engine.id] = session
        return session

    return open_graph


def graph_of(engine: Engine) -> Engine:
    """What the engine was built from, as an engine of ONNX Runtime that requires nothing; IntegrityError if it is not there."""
    files = engine.graph or engine.files
    if not files[0].endswith(".onnx"):
        raise IntegrityError(
            f"engine {engine.id} cannot run here, and the bundle does not hold its graph, which could be judged"
        )
    return replace(engine, backend="onnxruntime", files=files, graph=(), requires={})
