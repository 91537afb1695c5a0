"""From the ONNX file to a strongly typed network with TF32 off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from essm_deploy.errors import BuildError

MAX_BATCH = 32
"""The largest batch of an engine whose batch is free: TensorRT plans memory for it."""


def strongly_typed_network(trt: Any, builder: Any) -> Any:
    """An empty network whose types are those of the graph. TensorRT 11 knows no other kind and may have dropped the flag."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return builder.create_network(0 if flag is None else 1 << int(flag))


def is_strongly_typed(trt: Any, network: Any) -> bool:
    """Read back from the network itself."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return flag is None or bool(network.get_flag(flag))


def parse_graph(trt: Any, network: Any, logger: Any, graph: Path) -> Any:
    """Parse `graph` and the external data beside it into `network`; returns the parser, which owns the weights.

    BuildError names every node that TensorRT does not take, with its reason.
    """
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph)):
        problems = "; ".join(parser_problems(parser)) or "the parser gave no reason"
        version = trt.__version__
        raise BuildError(f"{graph.name}: TensorRT {version} does not take the graph: {problems}; try another --lowering")
    return parser


def parser_problems(parser: Any) -> Iterator[str]:
    """ "node layers.0/spectral/DFT (DFT): Plugin not found", one a problem."""
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        yield f"node {error.node_name() or error.node()} ({error.node_operator() or 'unknown operator'}): {reason_of(error)}"


def reason_of(error: Any) -> str:
    """The parser's own words on one line; a failed assertion is the text that it carries."""
    text = " ".join(str(error.desc()).split())
    quoted = text.split('"')
    return quoted[1] if len(quoted) >= 3 else text


def builder_config(trt: Any, builder: Any) -> Any:
    """A configuration in which fp32 means fp32, and whose engines tell the inspector everything (that costs no byte).

    BuildError if TF32 reads back as set.
    """
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.clear_flag(trt.BuilderFlag.TF32)
    if config.get_flag(trt.BuilderFlag.TF32):
        raise BuildError(f"TensorRT {trt.__version__} keeps TF32 on, so fp32 cannot be promised; use another version")
    return config


def free_batch(builder: Any, network: Any, config: Any) -> tuple[int, int, int] | None:
    """An optimization profile (least, usual, most) for the free axes of the inputs; None where every size is fixed."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    if all(size >= 0 for tensor in inputs for size in tensor.shape):
        return None
    sizes, profile = (1, 1, MAX_BATCH), builder.create_optimization_profile()
    for tensor in inputs:
        shapes = [[batch if size < 0 else size for size in tensor.shape] for batch in sizes]
        profile.set_shape(tensor.name, *shapes)
    config.add_optimization_profile(profile)
    return sizes
