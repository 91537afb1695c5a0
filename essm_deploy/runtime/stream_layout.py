"""The roles of a stream engine's tensors, read from its signature.

    tokens | features   the chunk: [B, C] or [B, C, input_size]
    X and next_X        carried from call to call: state [n, B, R, d], spare, pooled_sum [B, d], pooled_count [B, 1]
    leaving, entering   layer inputs of L tokens ago, and of this chunk: [n, B, C, d], only with a ring
    logits              [B, C, V] at every position, or [B, labels] after the chunk

B batch, C chunk, n layers, R rows of state, d width, V vocabulary, L trained length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from essm_deploy.errors import BundleError, InputError
from essm_deploy.runtime.manifest import Engine, TensorInfo
from essm_deploy.runtime.stream_info import StreamInfo

Shape = tuple[int, ...]

_DATA = ("tokens", "features")
_NEXT = "next_"


@dataclass(frozen=True)
class Layout:
    """What all engines of one stream have in common. `data` is the declared input, its time axis set to 0 (any chunk).

    `carried` holds the shapes of the tensors that go from call to call; `window` is the ring's shape [n, B, L, d], or
    None; `positions` says whether logits come at every position; `outputs` is V, or the number of labels.
    """

    info: StreamInfo
    data: TensorInfo
    batch: int
    carried: tuple[tuple[str, Shape], ...]
    window: Shape | None
    positions: bool
    outputs: int

    def continues(self, other: Layout) -> bool:
        """Whether engines of the two layouts may take turns on one stream."""
        return self == replace(other, info=replace(other.info, anchor=self.info.anchor, anchor_every=self.info.anchor_every))

    def around(self, chunk: int) -> Shape:
        """The shape [n, B, C, d] of `leaving` and `entering`."""
        layers, batch, _, width = dict(self.carried)["state"]
        return (layers, batch, chunk, width)


def fixed_batch(engine: Engine) -> int | None:
    """The batch that a stream engine is compiled for; None if it takes any."""
    size = next((info.shape[0] for info in engine.inputs if info.name in _DATA and info.shape), None)
    return size if isinstance(size, int) else None


def read_layout(engine: Engine, batch: int) -> Layout:
    """The layout of a stream engine run with `batch` sequences at once.

    Raises InputError if it is compiled for another batch, BundleError if its signature is not that of a stream engine.
    """
    compiled = fixed_batch(engine)
    if compiled not in (None, batch):
        raise InputError(f"engine {engine.id!r} is compiled for a batch of {compiled}, a batch of {batch} was asked for")
    try:
        return _read(engine, batch)
    except (KeyError, StopIteration, IndexError, ValueError):
        raise BundleError(
            f"engine {engine.id!r} does not have the inputs and outputs of a stream engine: build the bundle again"
        ) from None


def _read(engine: Engine, batch: int) -> Layout:
    info, chunk = engine.stream, engine.chunk
    if info is None or chunk is None:
        raise ValueError
    inputs = {entry.name: sized(entry, batch) for entry in engine.inputs}
    outputs = {entry.name: sized(entry, batch) for entry in engine.outputs}
    data = next(entry for entry in engine.inputs if entry.name in _DATA)
    carried = tuple((name, shape) for name, shape in sorted(inputs.items()) if outputs.get(_NEXT + name) == shape)
    layout = Layout(
        info=info,
        data=replace(data, shape=(batch, 0, *inputs[data.name][2:])),
        batch=batch,
        carried=carried,
        window=_window(dict(carried)["state"], info),
        positions=len(outputs["logits"]) == 3,
        outputs=outputs["logits"][-1],
    )
    if not _complete(layout, inputs, outputs, chunk) or not _float32(engine, data.name):
        raise ValueError
    return layout


def _complete(layout: Layout, inputs: dict[str, Shape], outputs: dict[str, Shape], chunk: int) -> bool:
    """Whether the signature is what the layout asks for, with nothing missing and nothing left over."""
    shapes, info = dict(layout.carried), layout.info
    feed, got = dict(shapes), {_NEXT + name: shape for name, shape in shapes.items()}
    feed[layout.data.name] = (layout.batch, chunk, *inputs[layout.data.name][2:])
    got["logits"] = (layout.batch, chunk, layout.outputs) if layout.positions else (layout.batch, layout.outputs)
    if info.ring:
        feed["leaving"] = got["entering"] = layout.around(chunk)
    spare_fits = shapes.get("spare") == (shapes["state"] if info.restart == "swap" else None)
    rows_fit = info.restart != "zero" or shapes["state"][2] >= info.length - info.length // 2
    chunk_fits = not info.ring or chunk <= info.length
    return feed == inputs and got == outputs and spare_fits and rows_fit and chunk_fits and shapes["state"][1] == layout.batch


def _float32(engine: Engine, data: str) -> bool:
    floating = all(entry.dtype == "float32" for entry in (*engine.inputs, *engine.outputs) if entry.name != data)
    wanted = "int64" if data == "tokens" else "float32"
    return floating and next(entry.dtype for entry in engine.inputs if entry.name == data) == wanted


def _window(state: Shape, info: StreamInfo) -> Shape | None:
    layers, batch, _, width = state
    return (layers, batch, info.length, width) if info.ring else None


def sized(info: TensorInfo, batch: int) -> Shape:
    """The shape with every named size, which in a stream engine can only be the batch, filled in."""
    return tuple(batch if isinstance(size, str) else size for size in info.shape)
