"""Opening a peer: its best settings for one sequence at a time on a few cores, all of them stated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from essm_deploy.checkpoint import read_checkpoint
from tests.benchmarks.contender import Contender, Opened, Setting, first_input


def open_torch(contender: Contender, setting: Setting) -> Opened:
    """Eager, or compiled in `contender.mode`, in inference mode."""
    import torch

    from tests.benchmarks.peers.torch_model import PeerModel, trainer_model

    torch.set_num_threads(setting.threads)
    torch.set_num_interop_threads(1)
    checkpoint = read_checkpoint(setting.checkpoint)
    if contender.spelling == "essm-train":
        model = trainer_model(checkpoint, setting.budget)
    else:
        model = PeerModel(checkpoint, setting.budget, contender.spelling).eval()
    run = torch.compile(model, mode=contender.mode, dynamic=False) if contender.peer == "torch.compile" else model
    inputs = torch.tensor(first_input(setting.inputs()))

    def call() -> Any:
        with torch.inference_mode():
            return run(inputs)

    settings = {"threads": str(torch.get_num_threads()), "mode": contender.mode or "eager", "guard": "inference_mode"}
    return Opened(call, lambda: call().numpy(), settings)


def open_onnxruntime(contender: Contender, setting: Setting) -> Opened:
    """The exported graph with every optimization, in a session like our own."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = setting.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    path = setting.artifact(contender.spelling, "onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: first_input(setting.inputs())}
    settings = {"threads": str(setting.threads), "optimization": "ORT_ENABLE_ALL", "export": "torch.onnx.export(dynamo=True)"}
    return Opened(lambda: session.run(None, feed), lambda: session.run(None, feed)[0], settings)


def open_openvino(contender: Contender, setting: Setting) -> Opened:
    """The CPU plugin, one request at a time, in float32."""
    import openvino

    source = _openvino_model(contender, setting)
    options = {"INFERENCE_NUM_THREADS": setting.threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.compile_model(source, "CPU", options).create_infer_request()
    ports = request.model_inputs
    inputs = setting.inputs()
    feed = {port.any_name: inputs[port.any_name] for port in ports} if len(ports) > 1 else {0: first_input(setting.inputs())}

    def call() -> np.ndarray:
        request.infer(feed, share_inputs=True)
        return request.get_output_tensor(0).data

    settings = {name: str(value) for name, value in options.items()} | {"source": source.name}
    return Opened(call, lambda: call().copy(), settings)


def open_executorch(contender: Contender, setting: Setting) -> Opened:
    """The exported program; XNNPACK's thread pool has as many threads as the process may use CPUs."""
    import torch
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(setting.artifact(contender.spelling, "pte"))
    method, inputs = program.load_method("forward"), torch.tensor(first_input(setting.inputs()))
    settings = {"delegate": "XNNPACK", "threads": "one a CPU", "export": "to_edge_transform_and_lower"}
    return Opened(lambda: method.execute([inputs]), lambda: method.execute([inputs])[0].numpy(), settings)


PEERS: dict[str, Callable[[Contender, Setting], Opened]] = {
    "torch eager": open_torch,
    "torch.compile": open_torch,
    "ONNX Runtime": open_onnxruntime,
    "OpenVINO": open_openvino,
    "our graph in OpenVINO": open_openvino,
    "ExecuTorch": open_executorch,
}


def _openvino_model(contender: Contender, setting: Setting) -> Any:
    if contender.peer == "our graph in OpenVINO":
        return setting.ours / f"k{setting.budget}-sequence.onnx"
    xml = setting.artifact(contender.spelling, "xml")
    return xml if xml.exists() else setting.artifact(contender.spelling, "onnx")
