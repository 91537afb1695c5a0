"""Opening what `ours` has emitted. Imports what an app imports, the runtime and no more: memory is measured here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from essm_deploy.runtime.engines import EnginePool
from essm_deploy.runtime.manifest import Budget, Engine
from essm_deploy.runtime.session import open_session
from essm_deploy.runtime.stream import Stream

RECORD = "engines.json"
FLOOR_SUFFIX = "-floor"


def all_engines(root: Path) -> list[Engine]:
    """Every engine in `root`, floors included."""
    return [Engine.from_json(entry) for entry in json.loads((root / RECORD).read_text())["engines"]]


def engine_of(root: Path, id: str) -> Engine:
    """The engine of that id."""
    return next(engine for engine in all_engines(root) if engine.id == id)


def open_sequence(root: Path, budget: int, threads: int, inputs: dict[str, np.ndarray]) -> Callable[[], dict[str, Any]]:
    """One call of the sequence engine, host to host."""
    session = open_session(root, engine_of(root, f"k{budget}-sequence"), threads)
    return lambda: session.run(inputs)


def open_stream(root: Path, budget: int, threads: int, max_length: int | None) -> Stream:
    """A stream over all chunk lengths that were emitted, its engines open."""
    engines = [engine for engine in all_engines(root) if not engine.id.endswith(FLOOR_SUFFIX)]
    pool = EnginePool(root, engines, budgets=(Budget(f"k{budget}", {"k": budget}, 0),), threads=threads)
    stream = Stream(pool, next(engine for engine in engines if engine.kind == "stream"), max_length=max_length)
    stream.prepare()
    return stream


def bind_step(root: Path, budget: int, threads: int) -> Callable[[], None]:
    """One call of the one-token engine without the stream around it: the graph alone, between fixed arrays."""
    engine = engine_of(root, f"k{budget}-stream-1")
    inputs = {port.name: np.zeros(port.shape, port.dtype) for port in engine.inputs}
    outputs = {port.name: np.zeros(port.shape, port.dtype) for port in engine.outputs}
    return open_session(root, engine, threads).bind(inputs, outputs)


def open_floor(root: Path, id: str, threads: int) -> tuple[Callable[[], None], int]:
    """One call of the floor of engine `id`, in a session with the engine's own options; and how many products it has."""
    engine, rng = engine_of(root, id + FLOOR_SUFFIX), np.random.default_rng(0)
    inputs = {port.name: rng.standard_normal(port.shape).astype(np.float32) for port in engine.inputs}
    shared = {port.shape: np.empty(port.shape, np.float32) for port in engine.outputs}
    outputs = {port.name: shared[port.shape] for port in engine.outputs}
    return open_session(root, engine, threads).bind(inputs, outputs), len(outputs)


def state_bytes(root: Path, budget: int) -> dict[str, int]:
    """Bytes per layer of what a stream carries: `state`, and `ring` where the stream may pass the trained length."""
    engine = engine_of(root, f"k{budget}-stream-1")
    shape = next(port.shape for port in engine.inputs if port.name == "state")
    layers, _, rows, width = (int(size) for size in shape)
    sizes = {"layers": layers, "rows": rows, "state": 4 * rows * width}
    if engine.stream is not None and engine.stream.ring:
        sizes["ring"] = 4 * engine.stream.length * width
    return sizes
