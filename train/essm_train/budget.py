"""Budget dropout: how many channels each optimiser step trains with (arXiv 2601.22488, eq. 5).

Warm-up steps and every n_full-th step use all channels. Any other step draws xi uniform on [0, 1] and takes the trained budget
nearest to K_min (k_max / K_min)^xi, which spreads the draws evenly over octaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BUDGETS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True)
class BudgetSampler:
    """`budgets` ascending, the last of which is k_max. n_full 0: no full steps after the warm-up; not `sampled`: no others."""

    budgets: tuple[int, ...] = BUDGETS
    warmup_steps: int = 0
    n_full: int = 8
    sampled: bool = True

    def __post_init__(self) -> None:
        if not self.budgets or list(self.budgets) != sorted(set(self.budgets)) or self.budgets[0] < 1 or self.n_full < 0:
            raise ValueError(f"budgets {self.budgets}, n_full {self.n_full}: expected ascending budgets >= 1 and n_full >= 0")

    def at(self, step: int, xi: float) -> int:
        """The budget of the step-th optimiser step, counted from 0; xi in [0, 1] is its uniform draw."""
        return self.budgets[-1] if self.is_full(step) else self.nearest(xi)

    def is_full(self, step: int) -> bool:
        """Whether the step trains all channels whatever is drawn."""
        anchored = self.n_full > 0 and step % self.n_full == 0
        return not self.sampled or step < self.warmup_steps or anchored

    def nearest(self, xi: float) -> int:
        """The trained budget nearest to K_min (k_max / K_min)^xi; the smaller one of two equally near."""
        target = self.budgets[0] * (self.budgets[-1] / self.budgets[0]) ** xi
        return min(self.budgets, key=lambda k: abs(k - target))

    def probabilities(self) -> dict[int, float]:
        """The chance of each budget in a sampled step: the length of the interval of xi that snaps to it."""
        low, high = self.budgets[0], self.budgets[-1]
        if low == high:
            return {low: 1.0}
        middles = [(a + b) / 2 for a, b in zip(self.budgets, self.budgets[1:], strict=False)]
        edges = [0.0, *(math.log(m / low) / math.log(high / low) for m in middles), 1.0]
        return {k: edges[i + 1] - edges[i] for i, k in enumerate(self.budgets)}
