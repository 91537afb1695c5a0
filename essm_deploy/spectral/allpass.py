"""A state-space system with given poles in coordinates that rounding cannot hurt: a cascade of all-pass sections.

Each section is an orthogonal matrix [[A, B], [C, D]], so the cascade's [A B] has orthonormal rows whatever the poles:
they may cluster, which makes eigenvector coordinates useless (condition numbers of 1e7 and more), or lie next to the
unit circle. States driven by white noise are uncorrelated (Takenaka-Malmquist basis; Roberts and Mullis, "Digital
Signal Processing", 1987, on orthogonal filters).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
System: TypeAlias = tuple[Array, Array]


def cascade(poles: NDArray[np.complex128]) -> System:
    """A [r, r], lower quasi-triangular, and B [r] with the given poles, in the given order, |pole| < 1.

    Complex poles come in conjugate pairs; each pair is a 2 x 2 block on the diagonal, at the place of its first member.
    """
    sections = [_section(pole) for pole in poles if pole.imag >= 0]
    r = sum(len(section) - 1 for section in sections)
    A, B = np.zeros((r, r)), np.zeros(r)
    # What the next section sees: the outputs of those before it, as a function of the states so far and of the input.
    from_states, from_input = np.zeros(r), 1.0
    start = 0
    for section in sections:
        size = len(section) - 1
        rows = slice(start, start + size)
        A[rows] = np.outer(section[:size, size], from_states)
        A[rows, rows] = section[:size, :size]
        B[rows] = section[:size, size] * from_input
        from_states *= section[size, size]
        from_states[rows] = section[size, :size]
        from_input *= section[size, size]
        start += size
    return A, B


def _section(pole: complex) -> Array:
    """Orthogonal [[A, B], [C, D]] of the all-pass section with this pole and, if it is complex, its conjugate.

    The pair is the product of two rotations with the reflection coefficients of z^2 - 2 Re(pole) z + |pole|^2.
    """
    if pole.imag == 0:
        a, s = pole.real, _cosine(pole.real)
        return np.array([[a, s], [s, -a]])
    second = abs(pole) ** 2
    first = -2 * pole.real / (1 + second)
    s1, s2 = _cosine(first), _cosine(second)
    return np.array(
        [[-first, -s1 * second, s1 * s2], [s1, -first * second, first * s2], [0.0, s2, second]],
    )


def _cosine(sine: float) -> float:
    return float(np.sqrt((1 - sine) * (1 + sine)))


def impulse_states(A: Array, B: Array, count: int) -> Array:
    """The states [r, count] after a unit impulse: B, A B, A^2 B, ... by doubling."""
    states, power = B[:, None], A
    while states.shape[1] < count:
        states = np.hstack([states, power @ states])
        power = power @ power
    return np.ascontiguousarray(states[:, :count])
