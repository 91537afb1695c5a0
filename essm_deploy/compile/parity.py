"""Every engine against the float64 reference: on this machine, and where it will run if that is another one."""

from __future__ import annotations

from pathlib import Path

from essm_deploy.bundle.numerics import check_built
from essm_deploy.bundle.vectors import bound_of, relative_error
from essm_deploy.errors import VerificationError
from essm_deploy.families.base import Arrays
from essm_deploy.profiling.remote import run_engine
from essm_deploy.profiling.worker_process import MAX_RUN_LINE, Launcher
from essm_deploy.runtime.manifest import Engine

_BYTES_A_CALL = MAX_RUN_LINE // 2  # base64 makes four bytes of three, and names and shapes take their place


def check_parity(
    launcher: Launcher, root: Path, engine: Engine, inputs: Arrays, expected: Arrays, threads: int | None
) -> float:
    """The largest relative error (2-norm, over the vectors and outputs). Raises VerificationError above the bound.

    Also raises what `check_built` and `run_engine` raise.
    """
    here = check_built(root, [], engine, inputs, expected)
    return max(here, _error_there(launcher, root, engine, inputs, expected, threads)) if launcher.remote else here


def _error_there(
    launcher: Launcher, root: Path, engine: Engine, inputs: Arrays, expected: Arrays, threads: int | None
) -> float:
    rows = len(next(iter(inputs.values())))
    step = max(1, _BYTES_A_CALL * rows // max(1, sum(array.nbytes for array in (*inputs.values(), *expected.values()))))
    worst = 0.0
    for at in range(0, rows, step):
        piece = {name: array[at : at + step] for name, array in inputs.items()}
        outputs = run_engine(launcher, root, engine, piece, threads)
        for name, reference in expected.items():
            pairs = zip(outputs[name], reference[at : at + step], strict=True)
            worst = max([worst, *(relative_error(found, wanted) for found, wanted in pairs)])
    if not worst <= bound_of(engine):
        raise VerificationError(
            f"engine {engine.id} differs on the device from the float64 reference by {worst:.1e} (relative), more than "
            f"{bound_of(engine):.0e}; it must not be used there"
        )
    return worst
