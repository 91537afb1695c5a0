"""Which lowerings can express a convolution, in the order of their estimated cost. Measuring decides among the first few."""

from __future__ import annotations

import math
from collections.abc import Iterator

from essm_deploy.errors import BuildError
from essm_deploy.spectral.lowerings.base import ConvProblem, Lowering
from essm_deploy.spectral.lowerings.chunked import Chunked
from essm_deploy.spectral.lowerings.dft import Dft
from essm_deploy.spectral.lowerings.monarch import Monarch
from essm_deploy.spectral.lowerings.streams import Fir, Recurrent, StreamLowering
from essm_deploy.spectral.lowerings.toeplitz import Toeplitz
from essm_deploy.spectral.realization import SHORT, NoRealization, Realization
from essm_deploy.spectral.realization_cache import realization_of

NAMES = ("toeplitz", "chunked", "monarch", "dft")

_CHUNKS = ((64, 16), (64, 32), (64, 64), (128, 16), (128, 32), (256, 32))
"""Chunk and block. The state rounds once a chunk: at 2,048 tokens and K = 32, chunks of 16 or 32 are no faster than those of 64
and are off by 9e-6 where these are off by 3e-6."""
_TRANSFORM_FROM = 128
"""Up to this many tokens a transform gains nothing over one GEMM: measured at 100, where it lost, and at 256, where it won."""
_LAUNCH_FLOPS = 1e5
"""What one kernel launch is worth in the ordering: a few microseconds at some tens of GFLOP/s. Only the order depends on it."""


def lawful_lowerings(problem: ConvProblem, name: str | None = None) -> list[Lowering]:
    """Every lowering (of that name) that can express the problem, cheapest estimate first. BuildError if there is none.

    `dft` is what others do, and only there to be asked for.
    """
    if name not in (None, *NAMES):
        raise BuildError(f"lowering {name!r} is unknown; known: {', '.join(NAMES)}")
    found = [lowering for lowering in _all(problem, name) if lowering.refusal(problem) is None]
    if not found:
        raise BuildError(f"lowering {name or 'of any name'}: {_reason(problem, name)}")
    return sorted(found, key=lambda lowering: estimate(lowering, problem))


def estimate(lowering: Lowering, problem: ConvProblem) -> float:
    """A figure to order by, not a time."""
    cost = lowering.cost(problem)
    return cost.flops + 4.0 * cost.bytes + _LAUNCH_FLOPS * cost.launches


def stream_lowering(problem: ConvProblem, overflow: str) -> StreamLowering:
    """The small recurrent state where the filters have one, the last L - 1 inputs where they have none."""
    realization = realization_of(problem.filters, problem.sigma)
    if isinstance(realization, NoRealization):
        return Fir()
    return Recurrent(realization, ring=overflow == "window")


def _all(problem: ConvProblem, name: str | None) -> Iterator[Lowering]:
    if name in (None, "toeplitz"):
        yield from (Toeplitz(block) for block in _blocks(problem.length))
    if name in (None, "chunked") and problem.taps > SHORT:
        realization = realization_of(problem.filters, problem.sigma)
        if isinstance(realization, Realization):
            yield from (Chunked(realization, chunk, block) for chunk, block in _CHUNKS)
    if name == "monarch" or (name is None and problem.length > _TRANSFORM_FROM):
        yield from (Monarch(block) for block in _monarch_blocks(problem.length))
    if name == "dft":
        yield Dft()


def _blocks(length: int) -> Iterator[int]:
    """One GEMM for a short sequence, also in two blocks; for a long one, blocks whose matrices stay small."""
    if length <= 512:
        yield length
    if length >= 32:
        yield -(-length // 2) if length <= 512 else 128


def _monarch_blocks(length: int) -> Iterator[int]:
    """The powers of two on either side of where the work is least."""
    below = 1 << int(math.log2(max(1.0, math.sqrt(length / 2))))
    yield from (below, 2 * below)


def _reason(problem: ConvProblem, name: str | None) -> str:
    realization = realization_of(problem.filters, problem.sigma)
    if name == "chunked" and isinstance(realization, NoRealization):
        return realization.reason
    candidate = Toeplitz(problem.length) if name != "chunked" else None
    return (candidate.refusal(problem) if candidate else None) or f"{problem.length} tokens are too few for a chunk"
