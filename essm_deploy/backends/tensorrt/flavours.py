"""Where the two TensorRTs differ; everything else in this package serves both.

    tensorrt-rtx    builds for most compute capabilities since 7.5 with neither GPU nor driver; kernels are compiled when the
                    engine is loaded on the device. One engine may serve several compute capabilities.
    tensorrt        picks its kernels by running them: it builds on the device itself, for that device.

Both have the same Python API under another module name. TensorRT-RTX has no builder for 8.7 (Orin), 9.0 (H100) and 10.0 (B200).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

from essm_deploy.errors import UnavailableError
from essm_deploy.runtime.cuda import describe_devices, find_device
from essm_deploy.runtime.requirements import satisfies


@dataclass(frozen=True)
class Flavour:
    """One TensorRT: `name` as targets, extras and manifests call it, `module` as Python does, `versions` that are supported."""

    name: str
    module: str
    versions: str
    needs_device: bool

    def load(self) -> Any:
        """The module. UnavailableError with the pip line if it is not installed or cannot be loaded."""
        missing = self._missing_module()
        if missing:
            raise UnavailableError(missing)
        return _import(self.module)

    @property
    def version(self) -> str:
        """Of the installed module."""
        return str(self.load().__version__)

    def missing(self, capabilities: tuple[str, ...]) -> str | None:
        """What keeps this flavour from building for the compute capabilities here, and what to do; None if nothing does."""
        missing = self._missing_module()
        if missing:
            return missing
        if self.needs_device:
            if find_device(capabilities):
                return None
            wanted = f"which has compute capability {' or '.join(capabilities)}"
            return f"{self.name} builds on the device itself, {wanted}; here is {describe_devices()}"
        unknown = [c for c in capabilities if not hasattr(self.load().ComputeCapability, member(c))]
        return f"{self.name} {self.version} does not build for compute capability {', '.join(unknown)}" if unknown else None

    def configure(self, trt: Any, config: Any, capabilities: tuple[str, ...]) -> None:
        """State the device that the engine is for, where the flavour does not simply take the one at hand."""
        if self.needs_device:
            return
        if hasattr(trt.BuilderFlag, "REQUIRE_USER_ALLOCATION"):  # without it no call of the engine can be captured as a graph
            config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
        config.num_compute_capabilities = len(capabilities)
        for index, capability in enumerate(capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, member(capability)), index)

    def _missing_module(self) -> str | None:
        where = "the GPU itself, too" if self.needs_device else "no GPU"
        if importlib.util.find_spec(self.module) is None:
            return f"{self.name} is not installed: pip install 'essm-deploy[{self.name}]' (building needs {where})"
        try:
            version = str(_import(self.module).__version__)
        except (ImportError, OSError, RuntimeError) as error:  # a wheel without its libraries
            shown = " ".join(str(error).split())[:200]
            return f"{self.name} cannot be loaded ({shown}): install 'essm-deploy[{self.name}]' again"
        if satisfies(version, self.versions):
            return None
        return f"{self.name} {version} is too old, {self.versions} is needed: pip install -U 'essm-deploy[{self.name}]'"


RTX = Flavour("tensorrt-rtx", "tensorrt_rtx", ">=1.7", needs_device=False)
CLASSIC = Flavour("tensorrt", "tensorrt", ">=10.3", needs_device=True)
FLAVOURS = {flavour.name: flavour for flavour in (CLASSIC, RTX)}


def member(capability: str) -> str:
    """ "8.6" -> "SM86", as TensorRT spells it."""
    return "SM" + capability.replace(".", "")


def tag(capabilities: tuple[str, ...]) -> str:
    """("8.6", "8.9") -> "sm86-sm89", the part of a file name that says whom the engine is for."""
    return "-".join(member(capability).lower() for capability in capabilities)


@functools.cache
def _import(module: str) -> Any:
    return importlib.import_module(module)
