"""The last L layer inputs of a stream, in one array that is used round and round."""

from __future__ import annotations

import numpy as np

from essm_deploy.runtime.tensors import Array


class Ring:
    """float32 [n, B, L, d], zero before there was anything. `total` counts the tokens that ever entered.

    The oldest entry is at `head`, which is also where the next one goes. Every change ends with one assignment, so that
    `undo` can bring back any earlier `total` after an error or an interrupt at any point.
    """

    def __init__(self, shape: tuple[int, ...], array: Array) -> None:
        self.array = array
        self.length = shape[2]
        self.total = 0
        self._origin = 0  # the `total` at which slot 0 was the oldest
        self._turn: tuple[int, Array | None, int] | None = None  # the layer that `align` is at, its copy, its shift

    @property
    def head(self) -> int:
        """The slot of the oldest entry."""
        return (self.total - self._origin) % self.length

    def read(self, out: Array) -> None:
        """Copy the oldest entries, those that leave next, into `out` [n, B, C, d], C <= L."""
        head = (self.total - self._origin) % self.length
        end = head + out.shape[2]
        if end <= self.length:
            out[...] = self.array[:, :, head:end]
        else:
            first = self.length - head
            out[:, :, :first] = self.array[:, :, head:]
            out[:, :, first:] = self.array[:, :, : end - self.length]

    def append(self, entries: Array) -> None:
        """Put `entries` [n, B, C, d], C <= L, in the place of the oldest ones."""
        self._write(entries)
        self.total += entries.shape[2]

    def oldest(self, count: int) -> Array:
        """A copy of the `count` <= L oldest entries [n, B, count, d]."""
        layers, batch, _, width = self.array.shape
        out = np.empty((layers, batch, count, width), self.array.dtype)
        self.read(out)
        return out

    def newest(self, count: int) -> Array:
        """A copy of the `count` <= L newest entries [n, B, count, d], oldest first."""
        everything = self.oldest(self.length)
        return np.array(everything[:, :, self.length - count :])

    def undo(self, total: int, oldest: Array) -> None:
        """Back to `total`, given what `oldest` returned then for as many tokens as may have entered since (or for L)."""
        if self._turn is not None:
            self.align()
        self.total = total
        self._write(oldest)

    def restore(self, total: int, newest: Array) -> None:
        """Hold exactly `newest` [n, B, C <= L, d], behind zeros."""
        self._turn = None
        self.array[:, :, : self.length - newest.shape[2]] = 0
        self.array[:, :, self.length - newest.shape[2] :] = newest
        self.total = self._origin = total

    def align(self) -> Array:
        """Turn the ring in place until the oldest entry is at slot 0, and return it, chronological.

        One layer at a time, so that the copy is a layer's. An interrupted turn is finished by the next call.
        """
        layer, copy, head = self._turn or (0, None, self.head)
        while head and layer < len(self.array):
            if copy is None:
                copy = np.concatenate((self.array[layer, :, head:], self.array[layer, :, :head]), axis=1)
                self._turn = (layer, copy, head)
            self.array[layer] = copy
            layer, copy = layer + 1, None
            self._turn = (layer, copy, head)
        self._origin = self.total
        self._turn = None
        return self.array

    def _write(self, entries: Array) -> None:
        head = (self.total - self._origin) % self.length
        end = head + entries.shape[2]
        if end <= self.length:
            self.array[:, :, head:end] = entries
        else:
            first = self.length - head
            self.array[:, :, head:] = entries[:, :, :first]
            self.array[:, :, : end - self.length] = entries[:, :, first:]
