"""Which compiled chunks serve a push, and where it has to stop in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from essm_deploy.errors import InputError
from essm_deploy.runtime.stream_info import StreamInfo


def split(count: int, sizes: Sequence[int]) -> list[int]:
    """`count` as a sum of the compiled `sizes` (descending), largest first. InputError if they cannot make it up."""
    found = _split(count, tuple(sizes))
    if found is None:
        known = ", ".join(map(str, sizes))
        raise InputError(f"{count} tokens cannot be made up of the compiled chunks {known}: push a sum of those")
    return [size for size, times in zip(sizes, found, strict=True) for _ in range(times)]


def _split(count: int, sizes: tuple[int, ...]) -> list[int] | None:
    if not sizes:
        return [] if count == 0 else None
    size, rest = sizes[0], sizes[1:]
    most = count // size
    # Among `size` smaller chunks some add up to a multiple of `size`, so fewer of those are enough: few tries decide.
    fewest = max(0, most - rest[0]) if rest else most
    for times in range(most, fewest - 1, -1):
        tail = _split(count - times * size, rest)
        if tail is not None:
            return [times, *tail]
    return None


class Events:
    """Where the stream may not just run on. It follows from the position alone, so that a saved state needs no more.

    A cut (overflow "restart") comes before the token at a multiple of L/2; an anchor run after the chunk that reaches or
    passes a multiple of `anchor_every` beyond L. `bound` is the last position that the stream may reach, or None.
    """

    def __init__(self, info: StreamInfo, bound: int | None, *, anchored: bool) -> None:
        self.bound = bound
        self._length = info.length
        # A spare must start at the first multiple of L/2; a stream that ends by L never uses it.
        self._cut = None if bound is not None and bound <= info.length else info.cut
        self._first_cut = 1 if info.restart == "swap" else info.length
        self._every = info.anchor_every if anchored else None

    def cut_due(self, position: int) -> bool:
        """Whether history is cut before the token at `position` is processed."""
        return self._cut is not None and position >= self._first_cut and position % self._cut == 0

    def anchor_due(self, start: int, end: int) -> bool:
        """Whether the chunk of the tokens from `start` to `end` calls for a new anchor."""
        return self._every is not None and end // self._every > max(start, self._length) // self._every

    def quiet_until(self, position: int) -> int:
        """The position up to which chunks from `position` on meet no event (`position` itself if one is due now)."""
        until = 2**62 if self.bound is None else self.bound
        if self._cut is not None:
            until = min(until, position if self.cut_due(position) else (position // self._cut + 1) * self._cut)
        if self._every is not None:
            until = min(until, (max(position, self._length) // self._every + 1) * self._every - 1)
        return max(until, position)

    def segments(self, position: int, count: int) -> Iterator[int]:
        """Lengths of the pieces that no chunk may straddle."""
        while count:
            piece = count if self._cut is None else min(count, self._cut - position % self._cut)
            yield piece
            position, count = position + piece, count - piece
