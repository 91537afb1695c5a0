"""The TensorRT runner. What needs no GPU is tested without one: the host plays the CUDA runtime and the engine."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from essm_deploy import runtime
from essm_deploy.errors import BundleError, EssmError, InputError, UnavailableError
from essm_deploy.runtime import tensorrt
from essm_deploy.runtime.cuda import CudaDevice
from essm_deploy.runtime.cuda_memory import Cuda
from essm_deploy.runtime.manifest import Engine, TensorInfo
from essm_deploy.runtime.session import open_session

DEVICE = CudaDevice(0, "NVIDIA Imaginary 1", "8.6", 8 * 2**30, "13.0")
ENGINE = Engine(
    id="double",
    budget="k1",
    kind="sequence",
    backend="tensorrt-rtx",
    precision="fp32",
    files=("double.engine",),
    inputs=(TensorInfo("x", "float32", ("batch", 3)), TensorInfo("lengths", "int64", ("batch",), maximum=3)),
    outputs=(TensorInfo("y", "float32", ("batch", 3)),),
    requires={"tensorrt_rtx": "==1.7.1", "compute_capability": ["8.6"]},
    proof={"batch": [1, 1, 4]},
)


class FakeCuda:
    """Device memory that is host memory, and a stream in which everything has happened at once."""

    class cudaMemcpyKind:  # noqa: N801
        cudaMemcpyHostToDevice = 1  # noqa: N815
        cudaMemcpyDeviceToHost = 2  # noqa: N815

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.synchronized = 0
        self.failing = ""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: (0, 0)

    def cudaMalloc(self, size: int) -> tuple[int, int]:  # noqa: N802
        if self.failing == "cudaMalloc":
            return 2, 0
        block = ctypes.create_string_buffer(size)
        self.blocks[ctypes.addressof(block)] = block
        return 0, ctypes.addressof(block)

    def cudaFree(self, address: int) -> tuple[int]:  # noqa: N802
        del self.blocks[address]
        return (0,)

    def cudaMemcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> tuple[int]:  # noqa: N802
        ctypes.memmove(to, source, size)
        return (0,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:  # noqa: N802
        self.synchronized += 1
        return (0,)

    def cudaMemGetInfo(self) -> tuple[int, int, int]:  # noqa: N802
        return 0, 2**30 - sum(len(block) for block in self.blocks.values()), 2**30

    def cudaGetErrorString(self, status: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, b"out of memory"


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


class FakeEngine:
    """y = 2 x, for batches up to 4."""

    num_io_tensors = 3
    kinds: ClassVar[dict[str, str]] = {"x": "FLOAT", "lengths": "INT64", "y": "FLOAT"}
    shapes: ClassVar[dict[str, tuple[int, ...]]] = {"x": (-1, 3), "lengths": (-1,), "y": (-1, 3)}

    def __init__(self) -> None:
        self.addresses: dict[str, int] = {}
        self.batch = 0

    def create_execution_context(self) -> FakeEngine:
        return self

    def get_tensor_name(self, index: int) -> str:
        return list(self.kinds)[index]

    def get_tensor_dtype(self, name: str) -> Named:
        return Named(self.kinds[name])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.batch or size if size < 0 else size for size in self.shapes[name])

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.batch = shape[0]
        return shape[0] <= 4

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def execute_async_v3(self, stream: int) -> bool:
        x, y = (np.ctypeslib.as_array((ctypes.c_float * (3 * self.batch)).from_address(self.addresses[n])) for n in "xy")
        y[:] = 2 * x
        return True


class FakeTensorRt:
    """The module."""

    __version__ = "1.7.1"

    class ILogger:
        pass

    def __init__(self) -> None:
        self.opens = True

    def Runtime(self, logger: Any) -> Any:  # noqa: N802
        outer = self

        class Runtime:
            def deserialize_cuda_engine(self, plan: bytes) -> FakeEngine | None:
                if outer.opens:
                    return FakeEngine()
                logger.log(Named("ERROR"), "CUDA driver version is insufficient for CUDA runtime version")
                return None

        return Runtime()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[FakeCuda, FakeTensorRt]:
    """The imaginary GPU, with an engine file in tmp_path."""
    api, module = FakeCuda(), FakeTensorRt()
    (tmp_path / "double.engine").write_bytes(b"plan")
    monkeypatch.setattr(tensorrt, "required_device", lambda engine: DEVICE)
    monkeypatch.setattr(tensorrt, "check_requirements", lambda engine: None)
    monkeypatch.setattr(tensorrt, "tensorrt_module", lambda engine, name: module)
    monkeypatch.setattr(tensorrt.Cuda, "open", classmethod(lambda cls, index: Cuda(api, index)))
    return api, module


def inputs(batch: int) -> dict[str, Any]:
    x = np.arange(3.0 * batch, dtype=np.float32).reshape(batch, 3)
    return {"x": x, "lengths": np.full(batch, 3)}


def test_a_call_is_host_to_host_and_waits_for_the_stream(device: Any, tmp_path: Path) -> None:
    session = open_session(tmp_path, ENGINE)
    for batch in (1, 4, 2):
        given = inputs(batch)
        np.testing.assert_array_equal(session.run(given)["y"], 2 * given["x"])
    assert device[0].synchronized == 3
    assert session.provider == "tensorrt_rtx 1.7.1 on NVIDIA Imaginary 1"


def test_buffers_are_kept_and_grow_only_when_they_have_to(device: Any, tmp_path: Path) -> None:
    session = open_session(tmp_path, ENGINE)
    session.run(inputs(4))
    before = set(device[0].blocks)
    session.run(inputs(1))
    assert set(device[0].blocks) == before


def test_bound_arrays_are_read_and_written_in_place(device: Any, tmp_path: Path) -> None:
    session = open_session(tmp_path, ENGINE)
    given, y = inputs(2), np.zeros((2, 3), np.float32)
    call = session.bind(given, {"y": y})
    call()
    np.testing.assert_array_equal(y, 2 * given["x"])
    given["x"] += 1
    session.run(inputs(1))
    call()
    np.testing.assert_array_equal(y, 2 * given["x"])


def test_strided_inputs_arrive_as_they_look(device: Any, tmp_path: Path) -> None:
    turned = np.arange(6, dtype=np.float32).reshape(3, 2).T
    result = open_session(tmp_path, ENGINE).run({"x": turned, "lengths": np.full(2, 3)})
    np.testing.assert_array_equal(result["y"], 2 * turned)


def test_a_batch_beyond_the_profile_names_its_bounds(device: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a batch of 1 to 4"):
        open_session(tmp_path, ENGINE).run(inputs(5))


def test_a_wrong_array_is_refused_before_it_reaches_the_device(device: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'x' is float64"):
        open_session(tmp_path, ENGINE).run({**inputs(1), "x": np.zeros((1, 3))})
    assert device[0].blocks == {}


def test_an_engine_that_does_not_open_names_both_sides_and_the_reason(device: Any, tmp_path: Path) -> None:
    device[1].opens = False
    with pytest.raises(UnavailableError) as caught:
        open_session(tmp_path, ENGINE)
    for said in ("tensorrt_rtx ==1.7.1", "8.6", "NVIDIA Imaginary 1", "driver of CUDA 13.0", "driver version is insufficient"):
        assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "outputs",
    [
        (TensorInfo("z", "float32", ("batch", 3)),),
        (TensorInfo("y", "float16", ("batch", 3)),),
        (TensorInfo("y", "float32", ("batch", 4)),),
        (TensorInfo("y", "float32", ("batch", 3, 1)),),
    ],
)
def test_an_engine_that_is_not_what_the_manifest_says_is_refused(device: Any, tmp_path: Path, outputs: Any) -> None:
    with pytest.raises(BundleError, match="the manifest says"):
        open_session(tmp_path, replace(ENGINE, outputs=outputs))


def test_a_failing_cuda_call_is_named_with_cudas_reason(device: Any, tmp_path: Path) -> None:
    device[0].failing = "cudaMalloc"
    with pytest.raises(EssmError, match="cudaMalloc failed on the GPU: out of memory"):
        open_session(tmp_path, ENGINE).run(inputs(1))


def test_an_engine_that_does_not_say_who_wrote_it_is_refused(device: Any, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not say which TensorRT"):
        open_session(tmp_path, replace(ENGINE, requires={"compute_capability": ["8.6"]}))


def test_without_such_a_gpu_both_sides_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"needs a GPU of compute capability 9\.9, here is .+: run it on such a device"):
        open_session(tmp_path, replace(ENGINE, requires={**ENGINE.requires, "compute_capability": ["9.9"]}))


def test_another_version_is_refused_with_both_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("essm_deploy.runtime.requirements.find_device", lambda capabilities: DEVICE)
    monkeypatch.setattr("essm_deploy.runtime.requirements.tensorrt_module", lambda engine, name: FakeTensorRt())
    with pytest.raises(UnavailableError, match=r"needs tensorrt_rtx ==1\.6\.0, here is 1\.7\.1"):
        open_session(tmp_path, replace(ENGINE, requires={**ENGINE.requires, "tensorrt_rtx": "==1.6.0"}))


def test_a_missing_tensorrt_names_its_pip_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("essm_deploy.runtime.requirements.find_device", lambda capabilities: DEVICE)
    monkeypatch.setattr("essm_deploy.runtime.requirements.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"pip install 'essm-deploy\[tensorrt-rtx\]'"):
        open_session(tmp_path, ENGINE)


@pytest.mark.gpu
@pytest.mark.tensorrt_rtx
def test_a_built_engine_runs_on_this_gpu_as_its_graph_does_on_the_cpu(keywords: Path, tmp_path: Path) -> None:
    from essm_deploy.backends.emit import prepare
    from essm_deploy.backends.tensorrt import RTX, TensorRtBackend
    from essm_deploy.bundle.judges import graph_of
    from essm_deploy.families import open_checkpoint
    from essm_deploy.runtime.cuda import cuda_devices

    capability = cuda_devices()[0].compute_capability
    if RTX.missing((capability,)):
        pytest.skip(f"TensorRT-RTX does not build for this GPU: {RTX.missing((capability,))}")
    made = prepare(tmp_path, open_checkpoint(keywords), [4], 1, TensorRtBackend(RTX, (capability,)))
    engine = made.sequence(4)
    features = np.random.default_rng(0).standard_normal((1, 24, 10)).astype(np.float32)
    given = {"features": features, "lengths": np.array([20])}
    ours, theirs = (open_session(tmp_path, e).run(given)["logits"] for e in (engine, graph_of(engine)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert runtime.SequenceEngine(tmp_path, engine).run(features=features)["logits"].shape == (1, 3)
