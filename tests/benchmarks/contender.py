"""Who takes part: names of contenders, what they run, and what has to be made before they can be opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

OURS_MODULE = "tests.benchmarks.ours"
OURS = "ours"
FLOOR = "floor"
PEERS = ("torch eager", "torch.compile", "ONNX Runtime", "OpenVINO", "ExecuTorch")
ELSEWHERE = "our graph in OpenVINO"

FFT = ("fft-batched", "fft-transposed", "fft-loop", "fft-loop-transposed", "fft-real", "fft-real-transposed", "essm-train")
"""Spellings of the paper's path. The others, `toeplitz` and `dft-gemms`, are rewrites by hand in real arithmetic."""


@dataclass(frozen=True)
class Contender:
    """`peer` runs the model in `spelling`; `mode` is a setting of its own (torch.compile's mode, for one).

    `installed`: with the allocator as it is installed; other peers are told to keep the memory that they free.
    """

    peer: str
    spelling: str = ""
    mode: str = ""
    installed: bool = False

    @property
    def name(self) -> str:
        """Unique in a run."""
        parts = (self.peer, self.spelling, self.mode, "as installed" if self.installed else "")
        return " ".join(part for part in parts if part)

    @property
    def by_fft(self) -> bool:
        """Whether it takes the paper's path."""
        return self.spelling in FFT


@dataclass(frozen=True)
class Setting:
    """What all contenders of a comparison share. `work` holds the artifacts: our engines and the peers' exports."""

    checkpoint: Path
    budget: int
    threads: int
    work: Path

    def to_json(self) -> dict[str, Any]:
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Setting:
        return cls(Path(value["checkpoint"]), value["budget"], value["threads"], Path(value["work"]))

    @property
    def ours(self) -> Path:
        """Where our engines are."""
        return self.work / f"{self.checkpoint.name}-k{self.budget}"

    def inputs(self) -> dict[str, np.ndarray]:
        """What every contender gets, as `workloads.write_workload` left it next to the checkpoint."""
        with np.load(self.checkpoint.with_suffix(".npz")) as arrays:
            return dict(arrays)

    def artifact(self, spelling: str, suffix: str) -> Path:
        """Where an export of a peer's model is."""
        return self.work / f"{self.checkpoint.name}-k{self.budget}-{spelling}.{suffix}"


def first_input(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Tokens, or features; the peers take no lengths."""
    return inputs["tokens" if "tokens" in inputs else "features"]


@dataclass
class Opened:
    """An opened contender: what is timed, what it answers (None for a floor), and the settings that it runs with."""

    call: Callable[[], object]
    output: Callable[[], np.ndarray] | None
    settings: dict[str, str]
    before_turn: Callable[[], None] | None = None


@dataclass(frozen=True)
class Preparation:
    """A command that makes an artifact, run in a process of its own: `python -m MODULE ARGUMENTS`."""

    module: str
    arguments: tuple[str, ...]
    makes: Path


def preparation(contender: Contender, setting: Setting) -> Preparation | None:
    """What has to be made before `contender` can be opened."""
    place = (str(setting.checkpoint), str(setting.budget))
    if contender.peer in (OURS, FLOOR, ELSEWHERE):
        return Preparation(OURS_MODULE, (*place, str(setting.ours)), setting.ours / "engines.json")
    suffix = {"ONNX Runtime": "onnx", "OpenVINO": _openvino_source(contender.spelling), "ExecuTorch": "pte"}.get(contender.peer)
    if suffix is None:
        return None
    target = setting.artifact(contender.spelling, suffix)
    return Preparation("tests.benchmarks.peers.export", (*place, contender.spelling, str(target)), target)


def _openvino_source(spelling: str) -> str:
    """OpenVINO reads GEMMs from ONNX. Of ONNX's DFT it ignores the axis, so an FFT is converted from torch instead."""
    return "xml" if spelling in FFT else "onnx"
