"""Device descriptions: one TOML file a target, checked key by key. docs/targets.md explains every key."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from essm_deploy.errors import TargetError
from essm_deploy.resources import data_folder
from essm_deploy.schema import StrictModel, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MAX_TOML_BYTES = 2**20


class Reach(StrictModel):
    """How a worker is started: as a local process, or over ssh on `host`."""

    via: Literal["local", "ssh"]
    host: str | None = None

    @model_validator(mode="after")
    def _host(self) -> Reach:
        if (self.via == "ssh") != (self.host is not None):
            raise ValueError("host belongs to via = 'ssh', and only there")
        return self


class Device(StrictModel):
    """Published figures of a device, for estimates; `source` says where they were published.

    `fp16_flops_per_s` is the dense rate of the tensor cores for fp16 and bf16 with fp32 accumulation; None where nobody
    publishes it. `unified_memory` says that the processor and the system live in the same memory.
    """

    compute_capability: str | None = Field(default=None, pattern=r"^\d+\.\d$")
    memory_bytes: PositiveInt
    unified_memory: bool = False
    bandwidth_bytes_per_s: PositiveFloat
    fp32_flops_per_s: PositiveFloat
    fp16_flops_per_s: PositiveFloat | None = None
    source: str = Field(min_length=1)


class Target(StrictModel):
    """A device to compile for."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    description: str
    kind: Literal["cpu", "gpu"]
    backends: list[Literal["onnxruntime", "tensorrt", "tensorrt-rtx"]] = Field(min_length=1)
    precision: list[Literal["fp32", "fp16", "bf16"]] = Field(min_length=1)
    reach: Reach
    device: Device | None = None

    @model_validator(mode="after")
    def _capability(self) -> Target:
        capability = self.device.compute_capability if self.device else None
        if capability is None and any(name.startswith("tensorrt") for name in self.backends):
            raise ValueError("TensorRT builds for a compute capability: state it under [device]")
        return self

    @property
    def compute_capability(self) -> str | None:
        """Such as "8.6"; None for what is no NVIDIA device."""
        return self.device.compute_capability if self.device else None


def known_targets() -> dict[str, Path]:
    """Every shipped description by name."""
    return {path.stem: path for path in sorted(data_folder("targets").glob("*.toml"))}


def find_target(name: str) -> Target:
    """A shipped target by name, or a description of one's own by its path (ending in .toml). TargetError otherwise."""
    if name.endswith(".toml"):
        return read_target(Path(name))
    known = known_targets()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise TargetError(f"unknown target {name!r}; {hint} A path to a .toml file describes a device of your own")
    return read_target(known[name])


def read_target(path: Path) -> Target:
    """Read and check one description; TargetError names the file, the key and what is allowed."""
    return parse(Target, _read_toml(path), str(path), TargetError)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TOML_BYTES + 1)
    except OSError as error:
        raise TargetError(f"{path}: cannot be read ({error.strerror}); expected a target description") from None
    if len(content) > _MAX_TOML_BYTES:
        raise TargetError(f"{path}: larger than {_MAX_TOML_BYTES} bytes; expected a target description")
    try:
        document: dict[str, Any] = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TargetError(f"{path}: not TOML ({str(error).splitlines()[0]})") from None
    return document
