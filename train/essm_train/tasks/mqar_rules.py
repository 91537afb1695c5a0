"""Multi-query associative recall by the rules of Zoology (Arora et al. 2023, arXiv 2312.04927).

A sequence begins with key-value pairs, each key once. After them each key comes again once, at a gap drawn from a power
law, and the token after it is to be its value. Everything else is a random token, and no target.

    k3 v3 k1 v1 k2 v2 | x k1 x x k2 x k3 x      targets: v1, v2, v3 at k1, k2, k3
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import UsageError
from essm_train.share import ALL, Share

IGNORED = -100  # a target that no loss counts, as torch's cross entropy has it

Tokens = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recall:
    """vocab_size: ids 1 to vocab_size / 2 - 1 are keys, the upper half values, 0 neither. power: of the gaps' law."""

    vocab_size: int = 8192
    seq_len: int = 256
    pairs: int = 64
    power: float = 0.01

    def check(self) -> None:
        """UsageError where the pairs and their questions do not fit."""
        if self.seq_len % 2 or self.vocab_size <= self.seq_len or not 1 <= self.pairs <= self.seq_len // 4:
            raise UsageError(
                f"seq_len {self.seq_len}, {self.pairs} pairs, vocab_size {self.vocab_size}; expected an even length below the "
                f"vocabulary's size, and at most seq_len / 4 pairs"
            )
        if self.pairs > self.vocab_size // 2 - 1:
            raise UsageError(f"{self.pairs} pairs need as many keys; vocab_size {self.vocab_size} has fewer")
        if self.power <= 0.0:
            raise UsageError(f"power {self.power}; expected above 0")


def recall(rules: Recall, rows: int, rng: np.random.Generator, share: Share = ALL) -> tuple[Tokens, Tokens]:
    """inputs and targets [rows, seq_len], or a share of these rows, for all of which the draws are made.

    A target is the value that the next token should be, IGNORED elsewhere.
    """
    half, context, mine = rules.vocab_size // 2, 2 * rules.pairs, share.rows(rows)
    keys = _distinct(rng.random((rows, half - 1))[mine], rules.pairs) + 1
    values = _distinct(rng.random((rows, rules.vocab_size - half))[mine], rules.pairs) + half
    tokens = rng.integers(0, rules.vocab_size, (rows, rules.seq_len))[mine]
    tokens[:, 0:context:2], tokens[:, 1:context:2] = keys, values
    space = (rules.seq_len - context) // 2
    questions = context + 2 * _gaps(rules, rng.standard_exponential((rows, space))[mine])
    np.put_along_axis(tokens, questions, keys, axis=1)
    targets = np.full_like(tokens, IGNORED)
    np.put_along_axis(targets, questions, values, axis=1)
    return tokens, targets


def _distinct(uniform: Floats, count: int) -> Tokens:
    """`count` of the numbers below `kinds` in each row, without repeats, in any order; from draws [rows, kinds]."""
    return np.argsort(uniform, axis=1)[:, :count]


def _gaps(rules: Recall, exponential: Floats) -> Tokens:
    """Places of the questions in pairs of tokens, without repeats: p(n) ~ power n^(power - 1), n = 1, 2, ...

    Sorting by exponentials [rows, places] divided by p draws without replacement as one after the other does (Efraimidis and
    Spirakis 2006).
    """
    weights = np.arange(1, exponential.shape[1] + 1, dtype=np.float64) ** (rules.power - 1.0)
    return np.argsort(exponential / weights, axis=1)[:, : rules.pairs]
