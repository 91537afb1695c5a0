"""One engine of a stream, bound to the stream's buffers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from essm_deploy.errors import BundleError
from essm_deploy.runtime.cuda_state import DeviceState
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.session import DeviceSession, Session
from essm_deploy.runtime.stream_buffers import StreamBuffers, Where, aligned_zeros
from essm_deploy.runtime.stream_layout import Layout, sized
from essm_deploy.runtime.stream_ring import Ring

_NEXT = "next_"


class ChunkRunner:
    """Processes `chunk` tokens: fill `data`, `step()`, read `logits` (or `last`, the last position's).

    Bound once for either direction of the swap, so that a step allocates and looks up nothing. The carried tensors stay on
    the session's device if it has memory of its own: `_bring` lets the side on which the engine runs have them, so that this
    side has them whether the step then succeeds or not.
    """

    def __init__(self, session: Session, engine: Engine, layout: Layout, buffers: StreamBuffers) -> None:
        self.chunk = chunk = engine.chunk or 1
        info = layout.data
        self.data = aligned_zeros((layout.batch, chunk, *_sizes(info.shape[2:])), info.dtype)
        shape = (layout.batch, chunk, layout.outputs) if layout.positions else (layout.batch, layout.outputs)
        self.logits = aligned_zeros(shape)
        self.last = self.logits[:, -1] if layout.positions else self.logits
        feed, got = {info.name: self.data}, {"logits": self.logits}
        if layout.info.ring:  # without a ring array the engine is fed zeros, and what enters is dropped
            feed["leaving"] = self._leaving = aligned_zeros(layout.around(chunk))
            got["entering"] = self._entering = aligned_zeros(layout.around(chunk))
        self._buffers = buffers
        self._here: Where = "host"
        if isinstance(session, DeviceSession) and (state := _device_state(session, layout, buffers)) is not None:
            self._here = "device"
            self._calls = tuple(session.bind_carried(feed, got, state, current, _NEXT) for current in (0, 1))
        else:
            one, other = buffers.sets
            self._calls = tuple(
                session.bind(feed | now, got | {_NEXT + name: array for name, array in then.items()})
                for now, then in ((one, other), (other, one))
            )
        self._bring = buffers.to_device if self._here == "device" else buffers.to_host
        self.step: Callable[[], None] = self._plain if buffers.ring is None else partial(self._ringed, buffers.ring)

    def _plain(self) -> None:
        """Process `data`: all or nothing."""
        buffers = self._buffers
        current, position = buffers.current, buffers.position
        try:
            self._bring()
            self._calls[current]()
            buffers.current, buffers.where = 1 - current, self._here
            buffers.position = position + self.chunk
        except BaseException:
            buffers.current, buffers.position = current, position
            raise

    def _ringed(self, ring: Ring) -> None:
        """The same with the ring."""
        buffers = self._buffers
        current, position = buffers.current, buffers.position
        ring.read(self._leaving)
        try:
            self._bring()
            self._calls[current]()
            ring.append(self._entering)
            buffers.current, buffers.where = 1 - current, self._here
            buffers.position = position + self.chunk
        except BaseException:
            buffers.current, buffers.position = current, position
            ring.undo(position, self._leaving)
            raise


class AnchorRunner:
    """Recomputes the state from the ring: rounding errors do not grow with the length of a stream."""

    def __init__(self, session: Session, engine: Engine, layout: Layout, buffers: StreamBuffers, ring: Ring) -> None:
        state = dict(layout.carried)["state"]
        shapes = [(entry.name, entry.dtype, sized(entry, layout.batch)) for entry in (*engine.inputs, *engine.outputs)]
        expected = [("ring", "float32", layout.window), ("state", "float32", state)]
        if engine.kind != "anchor" or shapes != expected:
            raise BundleError(
                f"engine {engine.id!r} does not compute the state {list(state)} from a ring: build the bundle again"
            )
        self._buffers, self._ring = buffers, ring
        self._calls = tuple(session.bind({"ring": ring.array}, {"state": each["state"]}) for each in reversed(buffers.sets))

    def step(self) -> None:
        """Replace the current state by one that is computed from the last L layer inputs."""
        self._ring.align()
        current = self._buffers.current
        self._calls[current]()  # into the set that is not in use
        self._buffers.edit()["state"][...] = self._buffers.sets[1 - current]["state"]


def _device_state(session: DeviceSession, layout: Layout, buffers: StreamBuffers) -> DeviceState | None:
    """The stream's memory on the session's device; None if it lies on another one, and the state has to travel."""
    if buffers.device is None:
        buffers.device = session.device_state(layout.carried)
    return buffers.device if buffers.device.index == session.device.index else None


def _sizes(shape: tuple[int | str, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if isinstance(size, int))
