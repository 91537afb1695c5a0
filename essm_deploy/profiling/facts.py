"""What a device is, as far as a number depends on it: versions and machine, for the keys of what is kept."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cached_property

import numpy
import onnxruntime

from essm_deploy import __version__
from essm_deploy.profiling.worker_process import Launcher, conversation
from essm_deploy.runtime import host
from essm_deploy.runtime.strict import JsonObject

_START = 120.0


@dataclass
class DeviceFacts:
    """Asked once, and only when somebody wants to know: a device elsewhere is asked by starting a worker there."""

    launcher: Launcher

    @cached_property
    def known(self) -> JsonObject:
        """{versions, machine}. Raises what starting a worker raises."""
        if self.launcher.remote:
            return self._asked()
        versions = {
            "essm_deploy": __version__,
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "onnxruntime": onnxruntime.__version__,
        }
        return {"versions": versions, "machine": host.describe()}

    def _asked(self) -> JsonObject:
        with conversation(self.launcher) as talk:
            hello = talk.receive("hello", _START)
        return {"versions": hello.get("versions"), "machine": hello.get("machine")}
