"""Exports of the torch model, each made in a process of its own.: `
`python -m tests.benchmarks.peers.export CHECKPOINT BUDGET SPELLING FILE.onnx|FILE.xml|FILE.pte`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from essm_deploy.families import open_checkpoint
from tests.benchmarks.contender import first_input
from tests.benchmarks.peers.torch_model import PeerModel
from tests.benchmarks.workloads import inputs_of


def export(checkpoint: Path, budget: int, spelling: str, target: Path) -> None:
    """Write the model in the format that the suffix of `target` names."""
    opened = open_checkpoint(checkpoint)
    model = PeerModel(opened, budget, spelling).eval()
    with torch.no_grad():
        FORMATS[target.suffix](model, torch.tensor(first_input(inputs_of(opened))), target)


def to_onnx(model: PeerModel, inputs: torch.Tensor, target: Path) -> None:
    """torch.onnx.export(dynamo=True), opset as torch chooses it."""
    torch.onnx.export(model, (inputs,), target, dynamo=True, verbose=False)


def to_openvino(model: PeerModel, inputs: torch.Tensor, target: Path) -> None:
    """openvino.convert_model of the traced module; torch.export's complex operators have no conversion rule."""
    import openvino

    converted = openvino.convert_model(model, example_input=(inputs,))
    converted.reshape({0: list(inputs.shape)})
    openvino.save_model(converted, target, compress_to_fp16=False)


def to_executorch(model: PeerModel, inputs: torch.Tensor, target: Path) -> None:
    """torch.export, then everything that the XNNPACK delegate takes goes there, the rest to the portable kernels."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    exported = torch.export.export(model, (inputs,), strict=False)
    program = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()
    target.write_bytes(program.buffer)


FORMATS: dict[str, Callable[[PeerModel, torch.Tensor, Path], None]] = {
    ".onnx": to_onnx,
    ".xml": to_openvino,
    ".pte": to_executorch,
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    export(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
