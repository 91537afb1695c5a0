"""The exceptions of the product. Each carries the exit code that the command line returns for it.

    EssmError                     4   build or inference failed
    ├── UsageError                2   the request itself is wrong
    │   ├── UnitError                 "10", "-1ms", "10 parsecs"
    │   ├── CheckpointError           a file of a checkpoint is missing, truncated or lies about its content
    │   ├── TargetError               an unknown device or a wrong device description
    │   ├── BundleError               not a bundle, or one of a newer schema
    │   ├── OutputError               the output directory holds something that this tool did not write
    │   ├── InputError                a clip, an array or a prompt that the model cannot take
    │   └── BankError                 filters that the arithmetic cannot resolve
    ├── NegativeAnswer            1   an honest no
    │   ├── NothingFits               no budget meets every limit
    │   ├── VerificationError         an engine does not compute what the reference does
    │   └── IntegrityError            a bundle whose bytes are not those that were written
    ├── UnavailableError          3   a device or a toolkit is missing
    │   └── ConnectionLost            the way to a device was cut while it was in use
    ├── BuildError                4   a graph or an engine could not be built
    │   └── PrecisionError            half precision overflows, or is off by more than its bound
    ├── WorkerError               4   the measuring process died or answered garbage
    └── Inconclusive              5   the measurement cannot decide

A message is one line that says what was read, what was expected, and the next step.
"""

from __future__ import annotations


class EssmError(Exception):
    """Base of every error that the product raises on purpose."""

    exit_code = 4


class UsageError(EssmError):
    """The request itself is wrong: nothing was started."""

    exit_code = 2


class UnitError(UsageError):
    """A quantity without a unit, with an unknown one, or out of range."""


class CheckpointError(UsageError):
    """A checkpoint that is missing, truncated, or not what its config says."""


class TargetError(UsageError):
    """An unknown target, or a device description that does not hold together."""


class BundleError(UsageError):
    """A directory that is not a bundle, or one that this version cannot read."""


class OutputError(UsageError):
    """An output directory that holds something else."""


class InputError(UsageError):
    """An input that the model cannot take."""


class BankError(UsageError):
    """Filters beyond what the arithmetic can resolve."""


class NegativeAnswer(EssmError):
    """The work was done, and the answer is no."""

    exit_code = 1


class NothingFits(NegativeAnswer):
    """No budget meets every limit."""


class VerificationError(NegativeAnswer):
    """An engine's outputs differ from the reference by more than the bound."""


class IntegrityError(NegativeAnswer):
    """A file whose bytes are not those that the manifest names."""


class UnavailableError(EssmError):
    """A device or a toolkit that is not there."""

    exit_code = 3


class ConnectionLost(UnavailableError):
    """The way to a device was cut while it was in use; what was measured before is kept."""


class BuildError(EssmError):
    """A graph or an engine that could not be built."""


class PrecisionError(BuildError):
    """A precision that the model does not bear: the message names the node or the tensor."""


class WorkerError(EssmError):
    """The measuring process died, hung, or answered garbage."""


class Inconclusive(EssmError):
    """The measurement, after a retry, cannot tell which side of a limit it lies on."""

    exit_code = 5
