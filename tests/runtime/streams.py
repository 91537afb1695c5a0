"""Bundles of a few kilobytes whose engines stream, and the same computation in numpy, a whole sequence at a time.

Each layer is a bank of leaky sums of its input u, read out and added: h = u + K (c0 x0 + c1 x1), where
x_r(t) = sum over the visible past of a_r^j u(t - j). What is visible past L is what the overflow says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from essm_deploy.runtime import Stream
from essm_deploy.runtime.files import sha256_file

LAYERS, WIDTH, VOCAB, LABELS = 2, 3, 11, ("no", "yes", "maybe")
DECAYS = np.array([0.9, 0.5])
READ = np.array([0.3, -0.2])
BUDGETS = (2, 8)
RNG = np.random.default_rng(0)
EMBEDDING = RNG.standard_normal((VOCAB, WIDTH)).astype(np.float32)
HEAD = RNG.standard_normal((WIDTH, VOCAB)).astype(np.float32)
LABEL_HEAD = RNG.standard_normal((WIDTH, len(LABELS))).astype(np.float32)


@dataclass(frozen=True)
class Tiny:
    """What is built. `fir`: the state is the last L - 1 layer inputs. `drift`: how wrong the leaving term is."""

    overflow: str = "window"
    fir: bool = False
    classifier: bool = False
    length: int = 8
    chunks: Sequence[int] = (1, 4)
    batch: int = 1
    anchor_every: int | None = None
    drift: float = 0.0
    vocab: int = VOCAB
    model: str = "0" * 64
    layout: str = "a" * 64

    @property
    def ring(self) -> bool:
        return self.overflow == "window" and not self.fir

    @property
    def restart(self) -> str | None:
        return ("zero" if self.fir else "swap") if self.overflow == "restart" else None

    @property
    def rows(self) -> int:
        return self.length - 1 if self.fir else 2

    @property
    def embedding(self) -> np.ndarray:
        return np.resize(EMBEDDING, (self.vocab, WIDTH))

    @property
    def head(self) -> np.ndarray:
        return LABEL_HEAD if self.classifier else np.resize(HEAD, (WIDTH, self.vocab))


def filters(tiny: Tiny) -> np.ndarray:
    """One filter [L]: the read-out of the two leaky sums."""
    return READ @ DECAYS[:, None] ** np.arange(tiny.length)


def first_visible(tiny: Tiny, t: int) -> int:
    """The first token that the operator sees at token `t`."""
    if tiny.overflow == "restart":
        half = tiny.length // 2
        return 0 if t < tiny.length else (t // half - 1) * half
    return max(0, t - tiny.length + 1)


def oracle(tiny: Tiny, inputs: np.ndarray, budgets: Sequence[int]) -> np.ndarray:
    """float64 logits [B, T, V] (of a classifier after every token) of a whole input; `budgets`: the one at each token."""
    hidden = (inputs if tiny.classifier else tiny.embedding[inputs]).astype(np.float64)
    for _ in range(LAYERS):
        out = hidden.copy()
        for t in range(hidden.shape[1]):
            start = first_visible(tiny, t)
            taps = filters(tiny)[: t - start + 1]
            out[:, t] += budgets[t] * np.einsum("j,bjd->bd", taps[::-1], hidden[:, start : t + 1])
        hidden = out
    if tiny.classifier:
        hidden = hidden.cumsum(1) / np.arange(1, hidden.shape[1] + 1)[None, :, None]
    return hidden @ tiny.head


class Graph:
    """Nodes and constants, named as they come."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, array: Any, dtype: type = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def add(self, kind: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        name = out or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def pick(self, tensor: str, index: int, axis: int = 0) -> str:
        return self.add("Gather", tensor, self.constant(index, np.int64), axis=axis)

    def cut(self, tensor: str, start: int, end: int, axis: int) -> str:
        return self.add("Slice", tensor, *(self.constant([v], np.int64) for v in (start, end, axis)))

    def stack(self, parts: list[str], axis: int, out: str | None = None) -> str:
        wide = [self.add("Unsqueeze", part, self.constant([axis], np.int64)) for part in parts]
        return self.add("Concat", *wide, axis=axis, out=out)

    def save(self, path: Path, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> None:
        kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
        sides = [
            [helper.make_tensor_value_info(i["name"], kinds[i["dtype"]], i["shape"]) for i in s] for s in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "tiny", *sides, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        path.write_bytes(model.SerializeToString())


def leaky(g: Graph, tiny: Tiny, state: str, u: str, leaving: str | None, chunk: int) -> tuple[str, str]:
    """Read-out [B, C, d] and next state [B, 2, d] of one layer."""
    steps = np.arange(chunk)
    read, rows = [], []
    for r, decay in enumerate(DECAYS):
        entering = u
        if leaving is not None:
            gone = g.add("Mul", leaving, g.constant(decay**tiny.length * (1 + tiny.drift)))
            entering = g.add("Sub", u, gone)
        old = g.add("Mul", g.cut(state, r, r + 1, 1), g.constant(decay ** (steps + 1.0)[:, None]))
        taps = np.tril(decay ** np.maximum(steps[:, None] - steps, 0))
        x = g.add("Add", old, g.add("MatMul", g.constant(taps), entering))
        read.append(g.add("Mul", x, g.constant(READ[r])))
        rows.append(g.pick(x, chunk - 1, axis=1))
    return g.add("Add", *read), g.stack(rows, 1)


def fir(g: Graph, tiny: Tiny, state: str, u: str, chunk: int) -> tuple[str, str]:
    """The same with the last L - 1 layer inputs as the state."""
    past = g.add("Concat", state, u, axis=1)
    taps = filters(tiny)
    weights = np.zeros((chunk, tiny.rows + chunk))
    for i in range(chunk):
        for j in range(tiny.length):
            weights[i, tiny.rows + i - j] = taps[j]
    return g.add("MatMul", g.constant(weights), past), g.cut(past, chunk, tiny.rows + chunk, 1)


def write_engine(path: Path, tiny: Tiny, budget: int, chunk: int) -> dict[str, Any]:
    """The graph at `path`; returns its entry in the manifest."""
    g, batch = Graph(), tiny.batch
    h = "features" if tiny.classifier else g.add("Gather", g.constant(tiny.embedding), "tokens")
    names = ["state"] + ["spare"] * (tiny.restart == "swap")
    following: dict[str, list[str]] = {name: [] for name in names}
    entering = []
    for layer in range(LAYERS):
        entering.append(h)
        gone = g.pick("leaving", layer) if tiny.ring else None
        for name in names:
            state = g.pick(name, layer)
            y, new = fir(g, tiny, state, h, chunk) if tiny.fir else leaky(g, tiny, state, h, gone, chunk)
            following[name].append(new)
            if name == "state":
                out = y
        h = g.add("Add", h, g.add("Mul", out, g.constant(float(budget))))
    for name in names:
        g.stack(following[name], 0, out=f"next_{name}")
    carried = [tensor(name, LAYERS, batch, tiny.rows, WIDTH) for name in names]
    inputs, outputs = [*carried], []
    if tiny.ring:
        g.stack(entering, 0, out="entering")
        inputs.append(tensor("leaving", LAYERS, batch, chunk, WIDTH))
        outputs.append(tensor("entering", LAYERS, batch, chunk, WIDTH))
    if tiny.classifier:
        pooled = [tensor("pooled_sum", batch, WIDTH), tensor("pooled_count", batch, 1)]
        total = g.add("ReduceSum", h, g.constant([1], np.int64), keepdims=0)
        g.add("Add", "pooled_sum", total, out="next_pooled_sum")
        g.add("Add", "pooled_count", g.constant([[float(chunk)]]), out="next_pooled_count")
        g.add("MatMul", g.add("Div", "next_pooled_sum", "next_pooled_count"), g.constant(tiny.head), out="logits")
        carried, inputs = carried + pooled, inputs + pooled + [tensor("features", batch, chunk, WIDTH)]
        outputs.append(tensor("logits", batch, len(LABELS)))
    else:
        g.add("MatMul", h, g.constant(tiny.head), out="logits")
        inputs.append(tensor("tokens", batch, chunk, dtype="int64") | {"maximum": tiny.vocab - 1})
        outputs.append(tensor("logits", batch, chunk, tiny.vocab))
    outputs += [{**info, "name": f"next_{info['name']}"} for info in carried]
    g.save(path, inputs, outputs)
    stream = {
        "length": tiny.length,
        "overflow": tiny.overflow,
        "ring": tiny.ring,
        "state": tiny.layout,
        "anchor": "anchor" if tiny.anchor_every else None,
        "anchor_every": tiny.anchor_every,
        "restart": tiny.restart,
    }
    return entry(path, f"k{budget}-stream-{chunk}", f"k{budget}", "stream", inputs, outputs) | {
        "chunk": chunk,
        "stream": stream,
    }


def write_anchor(path: Path, tiny: Tiny) -> dict[str, Any]:
    """The engine that computes the state from the ring."""
    g = Graph()
    taps = DECAYS[:, None] ** np.arange(tiny.length)[::-1]
    g.add("MatMul", g.constant(taps), "ring", out="state")
    inputs = [tensor("ring", LAYERS, tiny.batch, tiny.length, WIDTH)]
    outputs = [tensor("state", LAYERS, tiny.batch, tiny.rows, WIDTH)]
    g.save(path, inputs, outputs)
    return entry(path, "anchor", f"k{BUDGETS[0]}", "anchor", inputs, outputs)


def tensor(name: str, *shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def entry(path: Path, id: str, budget: str, kind: str, inputs: list[Any], outputs: list[Any]) -> dict[str, Any]:
    requires = {"onnxruntime": ">=1.17", "opset": 17}
    base = {"id": id, "budget": budget, "kind": kind, "backend": "onnxruntime", "precision": "fp32", "files": [path.name]}
    return base | {"requires": requires, "inputs": inputs, "outputs": outputs}


def write_stream_bundle(root: Path, tiny: Tiny | None = None, **more: Any) -> Path:
    """A whole, valid bundle in the directory `root`; `more` replaces keys of the manifest's model."""
    tiny = tiny or Tiny()
    root.mkdir(parents=True)
    engines = [write_engine(root / f"k{k}-{c}.onnx", tiny, k, c) for k in BUDGETS for c in tiny.chunks]
    if tiny.anchor_every:
        engines.append(write_anchor(root / "anchor.onnx", tiny))
    labels = {str(i): label for i, label in enumerate(LABELS)} if tiny.classifier else None
    task = "classification" if tiny.classifier else "language_modelling"
    document = {
        "schema_version": "1.0",
        "model": {"name": "tiny", "family": "tiny", "task": task, "hash": tiny.model, "id2label": labels, **more},
        "target": {"name": "cpu"},
        "overflow": tiny.overflow,
        "budgets": [{"id": f"k{k}", "axes": {"k": k}, "order": i} for i, k in enumerate(BUDGETS)],
        "engines": engines,
        "default": f"k8-stream-{tiny.chunks[0]}",
        "files": {path.name: sha256_file(path) for path in sorted(root.iterdir())},
    }
    (root / "manifest.json").write_text(json.dumps(document), encoding="utf-8")
    return root


TOTAL = 36  # tokens, beyond 4 L
TOLERANCE = 3e-6  # float32, two layers that amplify by up to ten at K = 8
WINDOW, FIR = Tiny(), Tiny(fir=True)
ANCHORED = Tiny(anchor_every=3, chunks=(1, 2, 5))
SWAP, ZERO = Tiny(overflow="restart"), Tiny(overflow="restart", fir=True)
SPOTTER = Tiny(classifier=True)
ALL = [WINDOW, FIR, ANCHORED, SWAP, ZERO, SPOTTER, Tiny(classifier=True, overflow="restart"), Tiny(batch=2)]
NAMES = ["window", "fir", "anchored", "swap", "zero", "classifier", "classifier-swap", "batch-2"]


def data(tiny: Tiny, total: int = TOTAL, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if tiny.classifier:
        return rng.standard_normal((tiny.batch, total, WIDTH)).astype(np.float32)
    return rng.integers(0, tiny.vocab, (tiny.batch, total))


def close_to(value: np.ndarray, reference: np.ndarray, tolerance: float = TOLERANCE) -> bool:
    return bool(np.linalg.norm(value - reference) <= tolerance * np.linalg.norm(reference))


def pushed(stream: Stream, tiny: Tiny, inputs: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Logits at every position, or of a classifier after every push."""
    ends = np.cumsum(sizes)
    parts = [stream.push(inputs[:, e - n : e], all_positions=not tiny.classifier) for n, e in zip(sizes, ends, strict=True)]
    return np.stack(parts, 1) if tiny.classifier else np.concatenate(parts, 1)


def expected(tiny: Tiny, inputs: np.ndarray, sizes: Sequence[int], budget: int = 8) -> np.ndarray:
    reference = oracle(tiny, inputs, [budget] * inputs.shape[1])
    return reference[:, np.cumsum(sizes) - 1] if tiny.classifier else reference


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Two snapshots, bit by bit."""
    assert {key: value for key, value in found.items() if key != "arrays"} == {
        key: value for key, value in wanted.items() if key != "arrays"
    }
    assert set(found["arrays"]) == set(wanted["arrays"])
    for name, array in wanted["arrays"].items():
        np.testing.assert_array_equal(found["arrays"][name], array)
