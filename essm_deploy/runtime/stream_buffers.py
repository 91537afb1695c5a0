"""What a stream remembers, in memory that is allocated once, and how a failed push is taken back."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from essm_deploy.runtime.cuda_state import DeviceState
from essm_deploy.runtime.stream_layout import Layout, Shape
from essm_deploy.runtime.stream_ring import Ring
from essm_deploy.runtime.tensors import Array

Where = Literal["host", "device", "both"]

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


def aligned_zeros(shape: Shape, dtype: str = "float32") -> Array:
    """Zeros, C-contiguous, at an address that vector loads like."""
    size = prod(shape) * np.dtype(dtype).itemsize
    block = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -block.ctypes.data % _ALIGNMENT
    return block[start : start + size].view(dtype).reshape(shape)


@dataclass(frozen=True)
class Before:
    """Where a stream stood, with copies of all that a push may change; `carried` is None where the device keeps them."""

    position: int
    current: int
    carried: dict[str, Array] | None
    leaving: Array | None


class StreamBuffers:
    """Two sets of the carried tensors: an engine reads `sets[current]` and writes the other one, then they swap.

    `position` is the number of tokens so far. `ring` is None where the stream cannot pass L, or needs none. Where the engines
    run on a device, `device` holds two sets as well, and `where` says which side has the carried tensors as they stand: the
    state stays there from step to step and comes to the host when somebody asks for it.
    """

    def __init__(self, layout: Layout, *, with_ring: bool) -> None:
        one, other = ({name: aligned_zeros(shape) for name, shape in layout.carried} for _ in range(2))
        self.sets = (one, other)
        self.ring = Ring(layout.window, aligned_zeros(layout.window)) if with_ring and layout.window else None
        self.current = 0
        self.position = 0
        self.device: DeviceState | None = None
        self.where: Where = "host"

    @property
    def front(self) -> dict[str, Array]:
        """The carried tensors as they stand, to be read."""
        self.to_host()
        return self.sets[self.current]

    def edit(self) -> dict[str, Array]:
        """The carried tensors as they stand, to be changed in place."""
        front = self.front
        self.where = "host"
        return front

    def to_host(self) -> None:
        """Let the host have the carried tensors."""
        if self.where == "device" and self.device is not None:
            self.device.download(self.current, self.sets[self.current])
            self.where = "both"

    def to_device(self) -> None:
        """Let the device have them."""
        if self.where == "host" and self.device is not None:
            self.device.upload(self.current, self.sets[self.current])
            self.where = "both"

    def before(self, tokens: int) -> Before:
        """What `take_back` needs after a push of up to `tokens` tokens."""
        leaving = self.ring.oldest(min(tokens, self.ring.length)) if self.ring else None
        if self.where == "device" and self.device is not None:
            self.device.keep(self.current)
            return Before(self.position, self.current, None, leaving)
        return Before(self.position, self.current, {name: array.copy() for name, array in self.front.items()}, leaving)

    def take_back(self, before: Before) -> None:
        """Undo everything since `before`."""
        self.current, self.position = before.current, before.position
        if before.carried is not None:
            self._fill(before.carried)
        elif self.device is not None:
            self.device.give_back(self.current)
            self.where = "device"
        if self.ring and before.leaving is not None:
            self.ring.undo(before.position, before.leaving)

    def restore(self, position: int, carried: dict[str, Array], newest: Array | None) -> None:
        """Continue from arrays of the right shapes; `newest` are the ring's last entries."""
        self._fill(carried)
        if self.ring and newest is not None:
            self.ring.restore(position, newest)
        self.position = position

    def release(self) -> None:
        """Let go of the arrays; nothing but `position` may be asked for afterwards."""
        if self.device is not None:
            self.device.release()
        self.sets, self.ring, self.device = ({}, {}), None, None

    def clear(self) -> None:
        """As before the first token."""
        self._fill({name: np.zeros_like(array) for name, array in self.sets[self.current].items()})
        if self.ring:
            self.ring.restore(0, self.ring.array[:, :, :0])
        self.position = 0

    def _fill(self, carried: dict[str, Array]) -> None:
        """Replace all the carried tensors."""
        for name, array in carried.items():
            np.copyto(self.sets[self.current][name], array)
        self.where = "host"
