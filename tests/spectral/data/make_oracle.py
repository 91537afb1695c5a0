"""Write hankel_L24.npz: every eigenvector of the rational Z at L = 24, by a dense solver in 120 digits.

    python tests/spectral/data/make_oracle.py

It shares no code and no library with the product: mpmath's tridiagonal QL instead of FLINT's block iteration.
"""

from pathlib import Path

import mpmath
import numpy as np

LENGTH = 24


def main() -> None:
    """Solve, sort by descending eigenvalue, make the largest entry positive, round, save."""
    mpmath.mp.dps = 120
    z = mpmath.matrix(LENGTH, LENGTH)
    for i in range(LENGTH):
        for j in range(LENGTH):
            s = i + j + 2
            z[i, j] = mpmath.mpf(2) / (s**3 - s)
    values, vectors = mpmath.eigsy(z)
    order = sorted(range(LENGTH), key=lambda k: -values[k])
    filters = np.array([[float(vectors[i, k]) for i in range(LENGTH)] for k in order])
    filters *= np.sign(filters[np.arange(LENGTH), np.abs(filters).argmax(axis=1)])[:, None]
    np.savez_compressed(
        Path(__file__).with_name("hankel_L24.npz"), filters=filters, sigma=np.array([float(values[k]) for k in order])
    )


if __name__ == "__main__":
    main()
