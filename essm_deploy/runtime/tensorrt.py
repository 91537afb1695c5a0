"""Running a TensorRT engine, either flavour: the same calls as an ONNX Runtime session, host arrays in and out.

A call is: inputs to the device, one enqueue (or the launch of a CUDA graph), outputs back, and a wait for the stream; so a time
that is taken around it is that of the whole call. A stream's state need not come back: see `bind_carried`. What the engine
needs is checked before it is opened, so that a wrong GPU, version or driver is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from essm_deploy.errors import BundleError, EssmError, InputError, UnavailableError
from essm_deploy.runtime.cuda import CudaDevice
from essm_deploy.runtime.cuda_launch import CallTimer, Launch
from essm_deploy.runtime.cuda_memory import Cuda
from essm_deploy.runtime.cuda_state import DeviceState
from essm_deploy.runtime.files import resolve_file
from essm_deploy.runtime.manifest import Engine, TensorInfo
from essm_deploy.runtime.requirements import TENSORRT, check_requirements, required_device, tensorrt_module
from essm_deploy.runtime.tensorrt_log import captured
from essm_deploy.runtime.tensors import Array, check_inputs

_DTYPES = {"FLOAT": "float32", "HALF": "float16", "INT64": "int64", "INT32": "int32", "INT8": "int8", "BOOL": "bool"}

Call = Callable[[], None]


class TensorRtSession:
    """An engine opened on the GPU that it was built for. `threads` is of no use to it and is reported as 1.

    Its manifest entry may ask for a CUDA graph (`execution: {"cuda_graph": true}`); where sizes are free there is none.
    Raises UnavailableError (no such GPU here, another TensorRT, a driver that is too old), IntegrityError (a file is missing)
    and BundleError (engine and manifest disagree).
    """

    threads = 1

    def __init__(self, root: Path, engine: Engine, threads: int | None = None) -> None:
        self.engine = engine
        self.device = device = required_device(engine)
        check_requirements(engine)
        name = next((entry for entry in TENSORRT if entry in engine.requires), None)
        if name is None:
            raise BundleError(f"engine {engine.id!r} does not say which TensorRT wrote it: build the bundle again")
        self._trt = trt = tensorrt_module(engine.id, name)
        self.provider = f"{name} {trt.__version__} on {device.name}"
        self._cuda = Cuda.open(device.index)
        before = self._cuda.free_bytes()
        self._plan = _deserialize(trt, resolve_file(root, engine.files[0]), engine, device)
        _check_signature(self._plan, engine)
        self._context = self._open_context()
        self._engine_bytes = max(0, before - self._cuda.free_bytes())
        self._fixed = all(isinstance(size, int) for info in (*engine.inputs, *engine.outputs) for size in info.shape)
        self._as_graph = self._fixed and bool((engine.execution or {}).get("cuda_graph"))
        self._launches: dict[tuple[tuple[str, int], ...], Launch] = {}
        self._timer: CallTimer | None = None
        self._bound = self._resident = False

    @property
    def device_bytes(self) -> int | None:
        """What the engine, its context and its buffers take of the device's memory; None if the driver does not tell."""
        return (self._engine_bytes + self._cuda.held_bytes) or None

    @property
    def execution(self) -> dict[str, bool]:
        """How the calls so far were made, for the record of a measurement.

        `transfers` says that copies between host and device are part of a call, `state_on_device` that a stream's state is
        not among them.
        """
        graphs = [launch.graph is not None for launch in self._launches.values()]
        return {
            "cuda_graph": bool(graphs) and all(graphs),
            "io_binding": self._bound,
            "transfers": True,
            "state_on_device": self._resident,
        }

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs, host to host. Raises InputError if the arrays are not those that the manifest declares."""
        check_inputs(inputs, self.engine.inputs)
        arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        self._set_shapes(_shapes(arrays))
        outputs = {info.name: np.empty(self._shape(info), info.dtype) for info in self.engine.outputs}
        self._transfer(arrays, outputs, self._launch(self._buffers(arrays, outputs)))
        return outputs

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Call:
        """Fix the C-contiguous host arrays that every call of the result reads and writes."""
        return self._bind(dict(inputs), dict(outputs), {}, _shapes(inputs))

    def device_state(self, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> DeviceState:
        """Memory on this device for the carried tensors of a stream."""
        return DeviceState(self._cuda, shapes)

    def bind_carried(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], state: DeviceState, current: int, written: str
    ) -> Call:
        """`bind`, with the tensors of `state` on the device: set `current` is read, and the other one is written.

        An output's name is that of its input behind `written`. Nothing of the state is copied.
        """
        self._resident = True
        carried = dict(state.sets[current])
        carried |= {written + name: address for name, address in state.sets[1 - current].items()}
        return self._bind(dict(inputs), dict(outputs), carried, {**_shapes(inputs), **state.shapes})

    def split_ms(self, call: Callable[[], object], count: int = 20) -> dict[str, float]:
        """Median milliseconds of a call's uploads, computation and downloads on the device, of `count` calls of `call`."""
        self._timer = timer = CallTimer(self._cuda)
        try:
            for _ in range(count):
                call()
        finally:
            self._timer = None
        return timer.medians()

    def layers(self) -> str:
        """What TensorRT's engine inspector says of every layer, as JSON."""
        inspector = self._plan.create_engine_inspector()
        if inspector is None:
            raise EssmError(f"engine {self.engine.id!r}: TensorRT {self._trt.__version__} has no inspector for it")
        inspector.execution_context = self._context
        return str(inspector.get_engine_information(self._trt.LayerInformationFormat.JSON))

    def close(self) -> None:
        """Give the device's memory back; nothing else may be called afterwards."""
        self._launches.clear()
        self._context = self._plan = None
        self._cuda.close()

    def _open_context(self) -> Any:
        context = self._plan.create_execution_context()
        if context is None:
            raise EssmError(f"engine {self.engine.id!r}: no execution context on {self.device.name}: is its memory in use?")
        verbosity = getattr(self._trt, "ProfilingVerbosity", None)
        if verbosity is not None:  # engines are built with names for the inspector; marking them at every call costs time
            context.nvtx_verbosity = verbosity.NONE
        return context

    def _bind(
        self, inputs: dict[str, Array], outputs: dict[str, Array], carried: dict[str, int], shapes: dict[str, tuple[int, ...]]
    ) -> Call:
        self._bound = True
        launch = self._launch(self._buffers(inputs, outputs) | carried)

        def call() -> None:
            self._set_shapes(shapes)  # another binding of this session may have set others, and moved the buffers
            self._transfer(inputs, outputs, self._launch(self._buffers(inputs, outputs) | carried))

        return (lambda: self._transfer(inputs, outputs, launch)) if self._fixed else call

    def _buffers(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> dict[str, int]:
        return {name: self._cuda.buffer(name, array.nbytes) for name, array in (*inputs.items(), *outputs.items())}

    def _launch(self, addresses: Mapping[str, int]) -> Launch:
        """The launch over these addresses, the same one each time where the sizes are fixed."""
        launch = Launch(self._context, self._cuda, addresses, self.engine.id, as_graph=self._as_graph)
        return self._launches.setdefault(tuple(sorted(addresses.items())), launch) if self._fixed else launch

    def _set_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for name, shape in shapes.items():
            if not self._context.set_input_shape(name, shape):
                batch = (self.engine.proof or {}).get("batch")
                raise InputError(
                    f"{name!r} has the shape {list(shape)}, engine {self.engine.id!r} was built for a batch of "
                    f"{f'{batch[0]} to {batch[-1]}' if batch else 'one size'}"
                )

    def _transfer(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], launch: Launch) -> None:
        self._cuda.use()
        self._mark(0)
        for name, array in inputs.items():
            self._cuda.write(launch.addresses[name], array)
        self._mark(1)
        launch()
        self._mark(2)
        for name, array in outputs.items():
            self._cuda.read(launch.addresses[name], array)
        self._mark(3)
        self._cuda.synchronize()
        if self._timer is not None:
            self._timer.take()

    def _mark(self, border: int) -> None:
        if self._timer is not None:
            self._timer.mark(border)

    def _shape(self, info: TensorInfo) -> tuple[int, ...]:
        return tuple(int(size) for size in self._context.get_tensor_shape(info.name))


def _shapes(arrays: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in arrays.items()}


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
