"""Which rows of a step's batch a process trains on.

A step's rows are cut into micro-batches, and each of these into the ranks' shares, so that the budget of a micro-batch is that
of the same rows however many processes there are:

    rows 0 .. 9, 2 parts, 2 ranks      | 0 1 : 2 3 4 | 5 6 : 7 8 9 |      rank 0 has 0 1 5 6, rank 1 has 2 3 4 7 8 9
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Share:
    """What rank `rank` of `size` has of a batch in `parts` micro-batches; without arguments all of it, in one."""

    rank: int = 0
    size: int = 1
    parts: int = 1

    def spans(self, count: int) -> list[tuple[int, int]]:
        """[first, end) of this rank's rows in each micro-batch of `count` rows; empty where it has fewer rows than ranks.

        There are as many micro-batches as rows, where that is fewer than `parts`.
        """
        return [_cut(a, b, self.size)[self.rank] for a, b in _cut(0, count, min(self.parts, count))]

    def rows(self, count: int) -> npt.NDArray[np.int64]:
        """The rows to build [n], ascending. Of an empty span its first row all the same: the rank takes part in the sum."""
        return np.concatenate([np.arange(a, max(b, a + 1)) for a, b in self.spans(count)])


ALL = Share()


def _cut(first: int, end: int, pieces: int) -> list[tuple[int, int]]:
    """[first, end) in so many pieces, whose sizes differ by one at most."""
    return list(pairwise(first + (end - first) * i // pieces for i in range(pieces + 1)))
