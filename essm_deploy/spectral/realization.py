"""One small linear system that reproduces every filter of a bank: x(t) = A x(t-1) + B u(t), features(t) = C x(t).

Poles come from the filters (identification.py) and are built into an orthogonal cascade (allpass.py). The states are then
made orthonormal over the filter's length, A and B are put on the float32 grid, and C is fitted to what is left. Nothing
cancels in these coordinates, so the recurrence runs in float32: the norm of A is close to 1, the rows of C have unit norm,
and the rounding of the coefficients is already in the fit. What error remains is the growth of the highest filters beyond
their end, which no coordinates change: sum ||C_k A^t||^2 is 1e4 to 5e4 squared at k = 32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg

from essm_deploy.errors import BankError
from essm_deploy.spectral.allpass import Array, cascade, impulse_states
from essm_deploy.spectral.bank import Bank
from essm_deploy.spectral.identification import SLOWEST_DECAY, Identification, identify

# Up to here the filter itself is as cheap, and the highest channels want growing poles.
SHORT = 256
# A filter that its best realization misses by more than this (relative 2-norm) is called noise.
NOISE = 0.1


@dataclass(frozen=True, eq=False)
class Realization:
    """A [r, r], B [r], C [K, r], float64; A and B are exactly representable in float32.

    length: L, the tokens over which it reproduces the filters; beyond it the filters end and the poles do not (see
    simulation.py). residual [K]: ||C A^t B - phi_k|| / ||phi_k|| over t = 0..L-1. spectral_radius: below 1.
    """

    A: Array
    B: Array
    C: Array
    length: int
    residual: Array
    spectral_radius: float

    @property
    def states(self) -> int:
        """r."""
        return len(self.B)

    def prefix(self, channels: int) -> Realization:
        """The same state read by the first channels only: a budget may change while a stream runs."""
        return replace(self, C=self.C[:channels], residual=self.residual[:channels])

    def impulse_states(self, count: int) -> Array:
        """B, A B, ..., A^(count-1) B as [r, count]."""
        return impulse_states(self.A, self.B, count)

    def leaving(self) -> Array:
        """A^L B [r]: what an input contributes at the moment it leaves the window."""
        return self.impulse_states(self.length + 1)[:, -1]

    def carry(self, chunk: int) -> tuple[Array, Array]:
        """A^chunk [r, r], and [A^(chunk-1) B, ..., A B, B] [r, chunk], which take the state across a chunk."""
        return np.linalg.matrix_power(self.A, chunk), np.ascontiguousarray(self.impulse_states(chunk)[:, ::-1])

    def readout(self, chunk: int) -> Array:
        """C A^(j+1) [chunk, K, r]: what the state before a chunk gives to its token j."""
        rows, out = self.C, []
        for _ in range(chunk):
            rows = rows @ self.A
            out.append(rows)
        return np.stack(out)


@dataclass(frozen=True, eq=False)
class NoRealization:
    """Why a bank has no small realization. residual [K] is the best that was seen, NaN where none was tried.

    faulty: the channels, counted from 1, that have none even by themselves; empty when the filters are merely too many or
    too short for the states allowed.
    """

    reason: str
    residual: Array
    faulty: tuple[int, ...] = ()


def default_tolerances(channels: int) -> Array:
    """1e-7 for the first 16 channels, 5e-6 for the others: below what float32 makes of the same recurrence."""
    return np.where(np.arange(channels) < 16, 1e-7, 5e-6)


def realize(
    bank: Bank,
    *,
    tolerance: float | Sequence[float] | Array | None = None,
    max_states: int = 64,
    channels: int | None = None,
    triangular: bool = False,
) -> Realization | NoRealization:
    """The smallest even number of states that reproduces each filter within its tolerance (relative 2-norm).

    channels: only the first ones. tolerance: one, or one per channel; `default_tolerances` if None. triangular: leave A
    lower quasi-triangular, which halves the work of a step; without it the states are rotated to the principal axes of the
    readout, which halves the float32 error of a carried chunk (at k = 32, L = 1024: 2.5e-5 to 8e-6).
    Raises BankError when there are not as many channels or tolerances, or max_states is below 2.
    """
    if channels is not None:
        bank = bank.prefix(channels)
    filters = bank.filters
    bounds = _bounds(tolerance, len(filters))
    if max_states < 2:
        raise BankError(f"a realization of {max_states} states does not exist; max_states must be at least 2")
    if bank.length <= SHORT:
        return NoRealization(f"length {bank.length} <= {SHORT}: use the filter itself", np.full(len(filters), np.nan))
    best = None
    for candidate in _candidates(identify(filters, bank.sigma), filters, float(bounds.min()), max_states):
        if (candidate.residual <= bounds).all():
            rotated = candidate if triangular else _rotated(candidate, filters)
            return rotated if (rotated.residual <= bounds).all() else candidate
        if best is None or _excess(candidate, bounds) < _excess(best, bounds):
            best = candidate
    return _explain(filters, bounds, max_states, best)


def _bounds(tolerance: float | Sequence[float] | Array | None, channels: int) -> Array:
    bounds = default_tolerances(channels) if tolerance is None else np.asarray(tolerance, np.float64)
    if bounds.shape not in ((), (channels,)) or not (bounds > 0).all():
        raise BankError(f"tolerance of shape {bounds.shape}; expected one positive number, or one for each of {channels}")
    return np.broadcast_to(bounds, (channels,))


def _candidates(found: Identification, filters: Array, tolerance: float, max_states: int) -> Iterator[Realization]:
    first = min(found.first_order(tolerance), max_states)
    limit = min(max_states, len(found.singular))
    for order in range(first + first % 2, limit + 1, 2):
        yield _build(found, filters, order)


def _excess(candidate: Realization, bounds: Array) -> float:
    return float((candidate.residual / bounds).max())


def _build(found: Identification, filters: Array, order: int) -> Realization:
    return _fitted(*_orthonormal_states(*cascade(found.poles(order)), filters.shape[1]), filters)


def _fitted(A: Array, B: Array, filters: Array) -> Realization:
    """A and B on the float32 grid, and the best C for them."""
    A, B = (array.astype(np.float32).astype(np.float64) for array in (A, B))
    states = impulse_states(A, B, filters.shape[1])
    # The states are orthonormal but for the rounding to float32, so the normal equations lose nothing.
    C = np.linalg.lstsq(states @ states.T, states @ filters.T, rcond=None)[0].T
    residual = np.linalg.norm(C @ states - filters, axis=1) / np.linalg.norm(filters, axis=1)
    # Of a triangular A the transpose is upper quasi-triangular: its eigenvalues are read off without error.
    radius = float(np.abs(np.linalg.eigvals(A.T)).max())
    return Realization(A, B, np.ascontiguousarray(C), filters.shape[1], residual, radius)


def _rotated(system: Realization, filters: Array) -> Realization:
    """Orthogonal coordinates that diagonalise Q = sum over t < L of (C A^t)^T (C A^t), largest first.

    Rounding a full A moves its poles; should one come closer to the unit circle than by half of what the cascade left, the
    system stays as it is.
    """
    observed, power, count = system.C.T @ system.C, system.A, 1
    while count < system.length:
        observed = observed + power.T @ observed @ power
        power, count = power @ power, 2 * count
    axes = np.linalg.eigh(observed)[1][:, ::-1]
    rotated = _fitted(axes.T @ system.A @ axes, axes.T @ system.B, filters)
    return rotated if rotated.spectral_radius <= np.exp(-SLOWEST_DECAY / 2 / system.length) else system


def _orthonormal_states(A: Array, B: Array, length: int) -> tuple[Array, Array]:
    """The same system in coordinates where sum over t < length of x(t) x(t)^T, after an impulse, is the identity."""
    upper = np.linalg.qr(impulse_states(A, B, length).T, mode="r")
    lower = (upper * np.sign(np.diag(upper))[:, None]).T
    new = scipy.linalg.solve_triangular(lower, np.column_stack([A @ lower, B]), lower=True)
    # The change of coordinates is triangular, so A keeps its zeros; rounding must not fill them.
    zeros = np.triu(A == 0, 1)
    return np.where(zeros, 0.0, new[:, :-1]), new[:, -1]


def _explain(filters: Array, bounds: Array, max_states: int, best: Realization | None) -> NoRealization:
    residual = np.full(len(filters), np.nan) if best is None else best.residual
    suspects = [k for k in range(len(filters)) if not residual[k] <= NOISE]
    faulty = tuple(k + 1 for k in suspects if _is_noise(filters[k : k + 1], max_states))
    if faulty:
        reason = f"channels {_ranges(faulty)} have no realization of {max_states} states: noise, not smooth filters"
    else:
        worst = int(np.nanargmax(residual / bounds)) if best else 0
        reason = f"{max_states} states are not enough: channel {worst + 1} is off by {residual[worst]:.0e}"
    return NoRealization(f"{reason}; use an exact lowering", residual, faulty)


def _is_noise(filters: Array, max_states: int) -> bool:
    """Whether one filter has no realization even by itself: small orders smooth noise, large ones follow it."""
    found = identify(filters, np.ones(1))
    orders = {min(order, max_states, len(found.singular)) for order in (8, 16, 32, max_states)}
    return all(_build(found, filters, order).residual[0] > NOISE for order in orders)


def _ranges(numbers: Sequence[int]) -> str:
    """12, 13, 14, 16 as "12-14, 16"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
