"""What an engine needs of the machine that runs it, checked before the engine is opened.

`requires` in the manifest: version conditions by package (`"onnxruntime": ">=1.20,<2"`, `"tensorrt_rtx": "==1.7.1.116"`),
`provider` (an execution provider's name), `compute_capability` (those of which the device must have one), `opset` (the
graph's own, for the record: ONNX Runtime refuses what it cannot run). A key that this version does not know is refused: running
an engine whose conditions were not understood ends in somebody else's cryptic error.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
import re
from collections.abc import Mapping
from typing import Any

import onnxruntime

from essm_deploy import __version__
from essm_deploy.errors import BundleError, UnavailableError
from essm_deploy.runtime.cuda import CudaDevice, describe_devices, find_device
from essm_deploy.runtime.manifest import Engine

DEFAULT_PROVIDER = "CPUExecutionProvider"
TENSORRT = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}
"""Modules that TensorRT engines name, and the extra that brings each."""

_CONDITION = re.compile(r"(>=|<=|==|!=|<|>)([0-9]{1,6}(?:\.[0-9]{1,6}){0,4})")


def check_requirements(engine: Engine) -> None:
    """Raise UnavailableError that names both sides if this machine lacks something that `engine` needs."""
    here = {"onnxruntime": onnxruntime.__version__, "essm_deploy": __version__, "python": platform.python_version()}
    for name, wanted in engine.requires.items():
        if name in here:
            _check_version(engine.id, name, wanted, here[name])
        elif name == "provider":
            _check_provider(engine.id, wanted)
        elif name == "compute_capability":
            required_device(engine)
        elif name in TENSORRT:
            _check_version(engine.id, name, wanted, str(tensorrt_module(engine.id, name).__version__))
        elif name != "opset":
            raise UnavailableError(
                f"engine {engine.id!r} needs {name} = {str(wanted)[:60]!r}, "
                f"which essm-deploy {__version__} cannot check: upgrade it"
            )


def unmet(engine: Engine) -> str | None:
    """Why `engine` cannot run on this machine, or None."""
    try:
        check_requirements(engine)
    except UnavailableError as error:
        return str(error)
    return None


def required_device(engine: Engine) -> CudaDevice:
    """The GPU that `engine` was built for. UnavailableError names both sides."""
    stated = engine.requires.get("compute_capability")
    wanted = [stated] if isinstance(stated, str) else stated
    if not isinstance(wanted, list) or not wanted or not all(isinstance(entry, str) for entry in wanted):
        raise BundleError(f"engine {engine.id!r} requires compute_capability {str(stated)[:60]!r}, expected ['8.6']")
    device = find_device(tuple(wanted))
    if device is None:
        raise UnavailableError(
            f"engine {engine.id!r} needs a GPU of compute capability {' or '.join(wanted)}, here is {describe_devices()}: "
            "run it on such a device, or build for this one"
        )
    return device


def tensorrt_module(engine: str, name: str) -> Any:
    """The module of a TensorRT; UnavailableError with the pip line if it is not installed or does not load."""
    extra = TENSORRT[name]
    if importlib.util.find_spec(name) is None:
        raise UnavailableError(f"engine {engine!r} needs {name}, not installed here: pip install 'essm-deploy[{extra}]'")
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError) as error:
        shown = " ".join(str(error).split())[:200]
        raise UnavailableError(f"engine {engine!r} needs {name}, which does not load here ({shown})") from None


def provider_of(requires: Mapping[str, Any]) -> str:
    """The execution provider that an ONNX Runtime engine was built for."""
    return str(requires.get("provider", DEFAULT_PROVIDER))


def satisfies(version: str, conditions: object) -> bool:
    """Whether `version` meets comma-separated conditions such as ">=1.20,<2"; ValueError if they cannot be read."""
    if not isinstance(conditions, str):
        raise ValueError("not a string")
    have = _numbers(version)
    for condition in conditions.split(","):
        match = _CONDITION.fullmatch(condition.strip())
        if match is None:
            raise ValueError(condition)
        if not _holds(have, match[1], _numbers(match[2])):
            return False
    return True


def _check_version(engine: str, name: str, wanted: object, here: str) -> None:
    try:
        met = satisfies(here, wanted)
    except ValueError:
        raise BundleError(
            f"engine {engine!r} requires {name} {str(wanted)[:60]!r}, expected conditions such as '>=1.20,<2'"
        ) from None
    if not met:
        raise UnavailableError(
            f"engine {engine!r} needs {name} {wanted}, here is {here}: install one that fits, or build again here"
        )


def _check_provider(engine: str, wanted: object) -> None:
    have = onnxruntime.get_available_providers()
    if wanted not in have:
        raise UnavailableError(
            f"engine {engine!r} needs the provider {str(wanted)[:60]!r}, this onnxruntime has {', '.join(have)}: "
            "install the package that brings it, or build for this machine"
        )


def _holds(have: tuple[int, ...], operator: str, want: tuple[int, ...]) -> bool:
    size = max(len(have), len(want))
    left = have + (0,) * (size - len(have))
    right = want + (0,) * (size - len(want))
    return {
        ">=": left >= right,
        "<=": left <= right,
        "==": left == right,
        "!=": left != right,
        "<": left < right,
        ">": left > right,
    }[operator]


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numeric components: "1.23.0rc1" is (1, 23, 0)."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else (0,)
