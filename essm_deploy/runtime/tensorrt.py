"""Running a TensorRT engine, either flavour: the same calls as an ONNX Runtime session, host arrays in and out.

A call is: inputs to the device, one enqueue, outputs back, and a wait for the stream; so a time that is taken around it is that
of the whole call. What the engine needs is checked before it is opened, so that a wrong GPU, version or driver is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from essm_deploy.errors import BundleError, EssmError, InputError, UnavailableError
from essm_deploy.runtime.cuda import CudaDevice
from essm_deploy.runtime.cuda_memory import Cuda
from essm_deploy.runtime.files import resolve_file
from essm_deploy.runtime.manifest import Engine, TensorInfo
from essm_deploy.runtime.requirements import TENSORRT, check_requirements, required_device, tensorrt_module
from essm_deploy.runtime.tensorrt_log import captured
from essm_deploy.runtime.tensors import Array, check_inputs

_DTYPES = {"FLOAT": "float32", "HALF": "float16", "INT64": "int64", "INT32": "int32", "INT8": "int8", "BOOL": "bool"}


class TensorRtSession:
    """An engine opened on the GPU that it was built for. `threads` is of no use to it and is reported as 1.

    Raises UnavailableError (no such GPU here, another TensorRT, a driver that is too old), IntegrityError (a file is missing)
    and BundleError (engine and manifest disagree).
    """

    threads = 1

    def __init__(self, root: Path, engine: Engine, threads: int | None = None) -> None:
        self.engine = engine
        device = required_device(engine)
        check_requirements(engine)
        name = next((entry for entry in TENSORRT if entry in engine.requires), None)
        if name is None:
            raise BundleError(f"engine {engine.id!r} does not say which TensorRT wrote it: build the bundle again")
        trt = tensorrt_module(engine.id, name)
        self.provider = f"{name} {trt.__version__} on {device.name}"
        self._cuda = Cuda.open(device.index)
        before = self._cuda.free_bytes()
        self._plan = _deserialize(trt, resolve_file(root, engine.files[0]), engine, device)
        _check_signature(self._plan, engine)
        self._context = self._plan.create_execution_context()
        if self._context is None:
            raise EssmError(f"engine {engine.id!r}: no execution context on {device.name}: is its memory in use?")
        self.device_bytes: int | None = max(0, before - self._cuda.free_bytes()) or None

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs, host to host. Raises InputError if the arrays are not those that the manifest declares."""
        check_inputs(inputs, self.engine.inputs)
        arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        self._set_shapes(arrays)
        outputs = {info.name: np.empty(self._shape(info), info.dtype) for info in self.engine.outputs}
        self._bind_outputs(outputs)
        self._call(arrays, outputs)
        return outputs

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Fix the C-contiguous host arrays that every call of the result reads and writes; their sizes are set once."""
        kept_inputs, kept_outputs = dict(inputs), dict(outputs)

        def call() -> None:
            self._set_shapes(kept_inputs)  # another binding of this session may have set others
            self._bind_outputs(kept_outputs)
            self._call(kept_inputs, kept_outputs)

        return call

    def _set_shapes(self, arrays: Mapping[str, Array]) -> None:
        for name, array in arrays.items():
            if not self._context.set_input_shape(name, tuple(array.shape)):
                batch = (self.engine.proof or {}).get("batch")
                raise InputError(
                    f"{name!r} has the shape {list(array.shape)}, engine {self.engine.id!r} was built for a batch of "
                    f"{f'{batch[0]} to {batch[-1]}' if batch else 'one size'}"
                )

    def _bind_outputs(self, outputs: Mapping[str, Array]) -> None:
        for name, array in outputs.items():
            self._context.set_tensor_address(name, self._cuda.buffer(name, array.nbytes))

    def _call(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        for name, array in inputs.items():
            self._context.set_tensor_address(name, self._cuda.upload(name, array))
        if not self._context.execute_async_v3(int(self._cuda.stream)):
            raise EssmError(f"engine {self.engine.id!r} failed to start in {self.provider}")
        for name, array in outputs.items():
            self._cuda.download(name, array)
        self._cuda.synchronize()

    def _shape(self, info: TensorInfo) -> tuple[int, ...]:
        return tuple(int(size) for size in self._context.get_tensor_shape(info.name))


def _deserialize(trt: Any, path: Path, engine: Engine, device: CudaDevice) -> Any:
    with captured(trt) as (logger, log):
        plan = trt.Runtime(logger).deserialize_cuda_engine(path.read_bytes())
    if plan is None:
        wanted = ", ".join(f"{key} {value}" for key, value in engine.requires.items())
        here = f"{device.name} (compute capability {device.compute_capability}, driver of CUDA {device.driver})"
        raise UnavailableError(
            f"engine {engine.id!r} was built for {wanted}; {here} with TensorRT {trt.__version__} does not open it: "
            f"{log.problem()[:200]}"
        )
    return plan


def _check_signature(plan: Any, engine: Engine) -> None:
    found = {plan.get_tensor_name(index) for index in range(plan.num_io_tensors)}
    declared = {info.name: info for info in (*engine.inputs, *engine.outputs)}
    if found != set(declared):
        raise BundleError(f"engine {engine.id!r} has the tensors {sorted(found)}, the manifest says otherwise")
    for name, info in declared.items():
        kind, shape = _DTYPES.get(plan.get_tensor_dtype(name).name), tuple(plan.get_tensor_shape(name))
        sizes = zip(shape, info.shape, strict=False)
        if kind != info.dtype or len(shape) != len(info.shape) or any(have not in (-1, want) for have, want in sizes):
            raise BundleError(
                f"engine {engine.id!r} has {name!r} as {kind} {list(shape)}, the manifest says {info.dtype} {list(info.shape)}"
            )
