"""Device descriptions: one TOML file a target, checked key by key. docs/targets.md explains every key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from essm_deploy.errors import TargetError
from essm_deploy.resources import find_toml, shipped_toml
from essm_deploy.schema import StrictModel, parse, read_toml

Via = Literal["local", "ssh", "node", "chromium"]

_REACH_KEYS: dict[Via, tuple[str, ...]] = {
    "local": (),
    "ssh": ("host", "port", "python", "directory", "connect_timeout_s"),
    "node": ("node_modules",),
    "chromium": ("node_modules", "browser"),
}
"""The keys of [reach] beside `via`, by `via`."""

# A host that begins with - would be an option of ssh. The interpreter's path is quoted for the device's login shell; not
# every shell takes a backslash or an exclamation mark in quotes literally.
_HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._+-]*@)?[A-Za-z0-9_:][A-Za-z0-9._:%-]{0,254}")
_PYTHON = re.compile(r"[^\s\\!\-\x00-\x1f\x7f][^\\!\x00-\x1f\x7f]{0,1023}")
_DIRECTORY = re.compile(r"(~/|/)[^\x00-\x1f\x7f]{0,1022}[^/\x00-\x1f\x7f]")


class Reach(StrictModel):
    """How a worker is started.

    `local`: as a process of this machine. `ssh`: on `host` (`user@name`, or a name of the user's ssh configuration), with the
    interpreter `python` there and our files below `directory` there; `~/` is the home of the user there. `node`, `chromium`:
    in that JavaScript engine on this machine, with the onnxruntime-web in the folder `node_modules`, and the program `browser`;
    without them, both are looked for (see docs/web.md).
    """

    via: Via
    host: str | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    python: str = "python3"
    directory: str = "~/.cache/essm-deploy"
    connect_timeout_s: PositiveInt = Field(default=15, le=600)
    node_modules: str | None = Field(default=None, min_length=1)
    browser: str | None = Field(default=None, min_length=1)

    @field_validator("host")
    @classmethod
    def _host(cls, host: str | None) -> str | None:
        if host is not None and not _HOST.fullmatch(host):
            raise ValueError('expected "user@name", an address, or a name of your ssh configuration')
        return host

    @field_validator("python")
    @classmethod
    def _python(cls, python: str) -> str:
        if not _PYTHON.fullmatch(python):
            raise ValueError("expected the interpreter's name, or its path without backslash and exclamation mark")
        return python

    @field_validator("directory")
    @classmethod
    def _directory(cls, directory: str) -> str:
        if not _DIRECTORY.fullmatch(directory) or {".", ".."} & set(directory.split("/")):
            raise ValueError('expected a directory of our own, such as "~/.cache/essm-deploy" or "/data/essm-deploy"')
        return directory

    @model_validator(mode="after")
    def _belong(self) -> Reach:
        allowed = ("via", *_REACH_KEYS[self.via])
        for key in sorted(self.model_fields_set - {*allowed}):
            raise ValueError(f"the key {key!r} does not belong to via = {self.via!r}; allowed: {', '.join(allowed)}")
        if self.via == "ssh" and self.host is None:
            raise ValueError("via = 'ssh' needs the key 'host', such as host = \"pi@kitchen\"")
        return self

    @model_serializer(mode="wrap")
    def _own_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in serialize(self).items() if key in ("via", *_REACH_KEYS[self.via])}


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

    def published(self) -> dict[str, Any]:
        """What a bundle says of it. The way to it is nobody else's business: it names a host, a user and paths."""
        return {**self.model_dump(mode="json"), "reach": {"via": self.reach.via}}


def known_targets() -> dict[str, Path]:
    """Every shipped description by name."""
    return shipped_toml("targets")


def find_target(name: str) -> Target:
    """A shipped target by name, or a description of one's own by its path (ending in .toml). TargetError otherwise."""
    return read_target(find_toml(name, known_targets(), "target", "describes a device of your own", TargetError))


def read_target(path: Path) -> Target:
    """Read and check one description; TargetError names the file, the key and what is allowed."""
    return parse(Target, read_toml(path, "a target description", TargetError), str(path), TargetError)
