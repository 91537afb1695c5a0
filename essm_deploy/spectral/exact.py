"""Hankel eigenvectors in as many digits as they need: block power iteration in integer arithmetic.

float64 cannot hold them at short lengths: the eigenvalues span 35 orders of magnitude at L = 60. A dense solver in
90 digits needs minutes at L = 256. Z is a Hankel matrix, so Z v is one product of integer polynomials, which FLINT does
exactly and fast; a few steps with the Rayleigh-Ritz projection then reach any accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essm_deploy.errors import BankError, UnavailableError

# Relative residual ||Z v - sigma v|| / sigma: far below half a unit in the last place of any float64 entry.
RESIDUAL = 1e-30
# Vectors carried beyond the wanted ones. Each step shrinks the error of channel k by sigma[last] / sigma[k].
OVERSAMPLING = 8
# Bits kept below the smallest eigenvalue of the block: 2^-160 = 7e-49.
GUARD_BITS = 160
MAX_BITS = 1 << 13
MAX_STEPS = 60

Rows = list[list[Any]]


def exact_filters(length: int, channels: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Unit eigenvectors [channels, length] and eigenvalues [channels] of Z, descending, rounded to float64.

    Z_ij = 2 / (s^3 - s), s = i + j, i, j = 1..length. Signs are as the iteration leaves them.
    Raises UnavailableError without python-flint and BankError when 8192 bits are not enough.
    """
    flint = _import_flint()
    size = min(length, channels + OVERSAMPLING)
    bits = 320
    while bits <= MAX_BITS:
        result = _iterate(flint, length, channels, size, bits)
        if result is not None:
            return result
        bits *= 2
    raise BankError(f"{channels} filters of length {length} need more than {MAX_BITS} bits; ask for fewer channels")


def _import_flint() -> ModuleType:
    try:
        import flint
    except ImportError as error:
        raise UnavailableError(
            "the exact Hankel bank needs python-flint, which is not installed; pip install 'python-flint>=0.9'"
        ) from error
    module: ModuleType = flint
    return module


def _iterate(
    flint: ModuleType, length: int, channels: int, size: int, bits: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """One attempt in fixed point, `bits` after the point; None when the block holds eigenvalues too small for it."""
    symbol = _hankel_symbol(flint, length, bits)
    block = _unit_vectors(length, size, 1 << bits)
    for _ in range(MAX_STEPS):
        image = _shift(_hankel_product(flint, symbol, block, length), bits)
        ritz = _ritz_pairs(flint, block, image, bits)
        if ritz is None or ritz[0][-1] < 2.0 ** (GUARD_BITS - bits):
            return None
        sigma, vectors, images = ritz
        if _residual(sigma[:channels], vectors, images, bits) < RESIDUAL:
            return _to_float(vectors[:channels], bits), np.array([float(value) for value in sigma[:channels]])
        # A product costs less than a projection: one more power of Z before the next one halves their number.
        again = _hankel_product(flint, symbol, _normalised(images, bits), length)
        block = _normalised(_shift(again, bits), bits)
    return None


def _hankel_symbol(flint: ModuleType, length: int, bits: int) -> Any:
    """The polynomial whose coefficient n is Z's entry on the anti-diagonal i + j = n + 2, rounded."""
    cubes = (s**3 - s for s in range(2, 2 * length + 1))
    return flint.fmpz_poly([((2 << bits) + cube // 2) // cube for cube in cubes])


def _unit_vectors(length: int, size: int, one: int) -> Rows:
    """Unit vectors at log-spaced positions: columns of Z there span the leading eigenvectors well."""
    spaced = dict.fromkeys(round(float(x)) - 1 for x in np.geomspace(1, length, size))
    filled = list(dict.fromkeys([*spaced, *range(length)]))[:size]
    return [[one if i == position else 0 for i in range(length)] for position in filled]


def _hankel_product(flint: ModuleType, symbol: Any, block: Rows, length: int) -> Rows:
    rows = []
    for vector in block:
        product = (symbol * flint.fmpz_poly(vector[::-1])).coeffs()
        product.extend([0] * (2 * length - 1 - len(product)))
        rows.append(product[length - 1 : 2 * length - 1])
    return rows


def _ritz_pairs(flint: ModuleType, block: Rows, image: Rows, bits: int) -> tuple[list[Any], Rows, Rows] | None:
    """Eigenvalues of Z restricted to the block (descending), unit Ritz vectors, and their images under Z.

    The block need not be orthonormal: G = V V^T and H = V Z V^T give the pairs of G^-1 H. None when one is not positive.
    """
    vectors, images = flint.fmpz_mat(block), flint.fmpz_mat(image)
    with flint.ctx.workprec(2 * bits):
        gram = flint.arb_mat(vectors * vectors.transpose())
        projected = flint.arb_mat(vectors * images.transpose())
        try:
            values, basis = flint.acb_mat(gram.solve(projected)).eig(right=True, algorithm="approx")
        except ZeroDivisionError:
            return None
        order = sorted(range(len(values)), key=lambda k: -float(values[k].real.mid()))
        sigma = [values[k].real.mid() for k in order]
        if not sigma[-1] > 0:
            return None
        rotation = flint.fmpz_mat([_real_direction(basis, k, bits) for k in order])
    rotated, moved = (rotation * vectors).tolist(), (rotation * images).tolist()
    norms = [_norm(row) for row in rotated]
    return sigma, _scaled(rotated, norms, bits), _scaled(moved, norms, bits)


def _real_direction(basis: Any, column: int, bits: int) -> list[Any]:
    """A column of eigenvectors as integers: a real matrix has real ones, up to the phase that the solver left."""
    entries = [basis[i, column] for i in range(basis.nrows())]
    pivot = max(entries, key=lambda entry: float(abs(entry).mid()))
    return [_to_integer((entry / pivot).real.mid(), 2 * bits) for entry in entries]


def _to_integer(value: Any, bits: int) -> Any:
    mantissa, exponent = value.man_exp()
    shift = int(exponent) + bits
    return mantissa << shift if shift >= 0 else mantissa >> -shift


def _norm(row: Sequence[Any]) -> Any:
    return sum(entry * entry for entry in row).isqrt()


def _scaled(rows: Rows, norms: Sequence[Any], bits: int) -> Rows:
    return [[(entry << bits) // norm for entry in row] for row, norm in zip(rows, norms, strict=True)]


def _shift(rows: Rows, bits: int) -> Rows:
    return [[entry >> bits for entry in row] for row in rows]


def _normalised(rows: Rows, bits: int) -> Rows:
    return _scaled(rows, [_norm(row) for row in rows], bits)


def _residual(sigma: Sequence[Any], vectors: Rows, images: Rows, bits: int) -> float:
    """The largest ||Z v - sigma v|| / sigma, v of unit norm."""
    worst = 0.0
    for value, vector, image in zip(sigma, vectors, images, strict=False):
        scaled = _to_integer(value, bits)
        norm = _norm([entry - ((scaled * v) >> bits) for entry, v in zip(image, vector, strict=True)])
        worst = max(worst, int(norm) / int(scaled))
    return worst


def _to_float(rows: Rows, bits: int) -> NDArray[np.float64]:
    # Dividing Python integers rounds correctly, whatever their size.
    return np.array([[int(entry) / (1 << bits) for entry in row] for row in rows])
