"""ListOps sequences by the rules of Long Range Arena's generator (Nangia and Bowman 2018; Tay et al. 2021).

A node below the maximal depth is an operator with probability 1/4, otherwise a digit. An operator has 2 to 10 arguments. A
tree is kept if its length, which counts digits, operators and closing brackets, lies strictly between 500 and 2,000.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
TOKENS = (*OPERATORS, "]", *map(str, range(10)))
IDS = {token: index + 1 for index, token in enumerate(TOKENS)}  # 0 is PAD
END, ZERO = IDS["]"], IDS["0"]
VOCAB_SIZE = len(TOKENS) + 1

_APPLY: tuple[Callable[[list[int]], int], ...] = (
    min,
    max,
    lambda values: _median(values),
    lambda values: sum(values) % 10,
)


@dataclass(frozen=True)
class Rules:
    """The generator's options, with Long Range Arena's values."""

    max_depth: int = 10
    max_args: int = 10
    min_length: int = 500
    max_length: int = 2000
    operator_chance: float = 0.25


LRA = Rules()


class Generator:
    """Trees as token ids. `tried` counts the roots that were drawn, for the acceptance rate."""

    def __init__(self, rng: np.random.Generator, rules: Rules = LRA) -> None:
        self.rng, self.rules, self.tried = rng, rules, 0
        self._draws: list[float] = []

    def sample(self) -> tuple[list[int], int]:
        """The next accepted tree and its value."""
        while True:
            self.tried += 1
            tokens: list[int] = []
            value = self._node(1, tokens)
            if value is not None and len(tokens) > self.rules.min_length:
                return tokens, value

    def _node(self, depth: int, tokens: list[int]) -> int | None:
        """Append a tree and return its value; None as soon as it is too long, since no such tree is kept."""
        rules = self.rules
        if depth >= rules.max_depth or self._uniform() > rules.operator_chance:
            digit = int(self._uniform() * 10)
            tokens.append(ZERO + digit)
            return digit
        operator, count = int(self._uniform() * 4), 2 + int(self._uniform() * (rules.max_args - 1))
        tokens.append(operator + 1)
        values = []
        for _ in range(count):
            value = self._node(depth + 1, tokens)
            if value is None or len(tokens) >= rules.max_length:
                return None
            values.append(value)
        tokens.append(END)
        return _APPLY[operator](values) if len(tokens) < rules.max_length else None

    def _uniform(self) -> float:
        """On [0, 1); drawn in blocks, which is ten times as fast as one by one."""
        if not self._draws:
            self._draws = self.rng.random(4096).tolist()
        return self._draws.pop()


def value_of(tokens: list[int]) -> int:
    """The value of a sequence of ids without parentheses. ValueError, with the place, if it is no single tree."""
    stack: list[tuple[int, list[int]]] = []
    for place, token in enumerate(tokens):
        if 1 <= token <= len(OPERATORS):
            stack.append((token - 1, []))
            continue
        value = token - ZERO
        if token == END:
            if not stack or not stack[-1][1]:
                raise ValueError(f"token {place} closes nothing")
            operator, values = stack.pop()
            value = _APPLY[operator](values)
        if stack:
            stack[-1][1].append(value)
        elif place == len(tokens) - 1:
            return value
        else:
            raise ValueError(f"the tree ends at token {place} of {len(tokens)}")
    raise ValueError(f"{len(stack)} operators are not closed")


def depth_of(tokens: list[int]) -> int:
    """How deep the operators nest."""
    depth = deepest = 0
    for token in tokens:
        depth += (1 <= token <= len(OPERATORS)) - (token == END)
        deepest = max(deepest, depth)
    return deepest


def _median(values: list[int]) -> int:
    """The middle value, or the mean of the middle two without its fraction, as int(numpy.median(...)) is."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2
