"""The TensorRT runner. What needs no GPU is tested without one: the host plays the CUDA runtime and the engine."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essm_deploy import runtime
from essm_deploy.backends.emit import Emitter
from essm_deploy.bundle.judges import graph_of
from essm_deploy.errors import BundleError, EssmError, InputError, UnavailableError, UsageError
from essm_deploy.runtime.engines import EnginePool, with_cuda_graph
from essm_deploy.runtime.manifest import Engine, TensorInfo
from essm_deploy.runtime.session import open_session
from essm_deploy.runtime.stream import Stream
from tests.runtime.fake_gpu import DEVICE, REQUIRES, FakeCuda, FakeEngine, FakeTensorRt, install

ENGINE = Engine(
    id="double",
    budget="k1",
    kind="sequence",
    backend="tensorrt-rtx",
    precision="fp32",
    files=("double.engine",),
    inputs=(TensorInfo("x", "float32", ("batch", 3)), TensorInfo("lengths", "int64", ("batch",), maximum=3)),
    outputs=(TensorInfo("y", "float32", ("batch", 3)),),
    requires=REQUIRES,
    proof={"batch": [1, 1, 4]},
)
FIXED = replace(
    ENGINE,
    id="fixed",
    files=("fixed.engine",),
    inputs=(TensorInfo("x", "float32", (2, 3)), TensorInfo("lengths", "int64", (2,), maximum=3)),
    outputs=(TensorInfo("y", "float32", (2, 3)),),
    proof=None,
    execution={"cuda_graph": True},
)


def doubled(given: dict[str, Any]) -> dict[str, Any]:
    return {"y": 2 * given["x"]}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[FakeCuda, FakeTensorRt]:
    """The imaginary GPU, with an engine file in tmp_path."""
    api = FakeCuda()
    module = FakeTensorRt(lambda plan: FakeEngine(api, ENGINE if plan == b"plan" else FIXED, doubled))
    (tmp_path / "double.engine").write_bytes(b"plan")
    (tmp_path / "fixed.engine").write_bytes(b"fixed")
    install(monkeypatch, api, module)
    return api, module


def inputs(batch: int) -> dict[str, Any]:
    x = np.arange(3.0 * batch, dtype=np.float32).reshape(batch, 3)
    return {"x": x, "lengths": np.full(batch, 3)}


def test_a_call_is_host_to_host_and_waits_for_the_stream(device: Any, tmp_path: Path) -> None:
    session = open_session(tmp_path, ENGINE)
    for batch in (1, 4, 2):
        given = inputs(batch)
        np.testing.assert_array_equal(session.run(given)["y"], 2 * given["x"])
    assert device[0].calls["cudaStreamSynchronize"] == 3
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


def test_a_captured_call_gives_what_an_ordinary_one_gives_and_is_enqueued_no_more(device: Any, tmp_path: Path) -> None:
    session = open_session(tmp_path, FIXED)
    for turn in range(5):
        given = inputs(2)
        given["x"] += turn
        np.testing.assert_array_equal(session.run(given)["y"], 2 * given["x"])
    assert device[1].opened[0].enqueued == 2  # once to warm up, once to be captured
    assert device[0].calls["cudaGraphLaunch"] == 4
    assert session.execution == {"cuda_graph": True, "io_binding": False, "transfers": True, "state_on_device": False}


def test_each_binding_replays_over_the_same_buffers(device: Any, tmp_path: Path) -> None:
    session = open_session(tmp_path, FIXED)
    given, y, z = inputs(2), np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    first, second = session.bind(given, {"y": y}), session.bind(given, {"y": z})
    for turn in range(4):
        given["x"][...] = turn
        first()
        np.testing.assert_array_equal(y, 2 * given["x"])
        second()
        np.testing.assert_array_equal(z, y)
    assert device[0].calls["cudaStreamBeginCapture"] == 1


@pytest.mark.parametrize("why", ["not asked for", "free sizes", "TensorRT says no", "the capture fails", "instantiation fails"])
def test_where_no_graph_can_be_or_was_asked_for_every_call_is_an_ordinary_one(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    api, module = device
    entry = {"not asked for": replace(FIXED, execution=None), "free sizes": replace(ENGINE, execution={"cuda_graph": True})}
    session = open_session(tmp_path, entry.get(why, FIXED))
    engine = module.opened[0]
    if why == "TensorRT says no":
        engine.capturable = False
    elif why == "the capture fails":
        monkeypatch.setattr(engine, "execute_async_v3", waiting(api, engine.execute_async_v3))
    elif why == "instantiation fails":
        api.failing = "cudaGraphInstantiate"
    for turn in range(4):
        given = inputs(2)
        given["x"] += turn
        np.testing.assert_array_equal(session.run(given)["y"], 2 * given["x"])
    assert session.execution["cuda_graph"] is False
    assert "cudaGraphLaunch" not in api.calls


def waiting(api: FakeCuda, enqueue: Any) -> Any:
    """An engine that waits for the device in the middle of a call, which a capture does not allow."""

    def call(stream: int) -> Any:
        if api.captured is not None:
            api.cudaStreamSynchronize(stream)
        return enqueue(stream)

    return call


def test_a_call_is_split_into_transfers_and_computation_by_events(device: Any, tmp_path: Path) -> None:
    session = open_session(tmp_path, FIXED)
    given, y = inputs(2), np.zeros((2, 3), np.float32)
    call = session.bind(given, {"y": y})
    assert session.split_ms(call, 5) == {"upload_ms": 0.0, "compute_ms": 2.0, "download_ms": 0.0}
    marked = device[0].calls["cudaEventRecord"]
    assert marked == 5 * 4
    call()
    assert device[0].calls["cudaEventRecord"] == marked  # nobody asks any more


def test_device_memory_counts_the_buffers_and_is_given_back(device: Any, tmp_path: Path) -> None:
    session = open_session(tmp_path, FIXED)
    assert session.device_bytes is None
    session.run(inputs(2))
    assert session.device_bytes == 2 * 3 * 4 + 2 * 8 + 2 * 3 * 4
    session.close()
    assert device[0].blocks == {}
    forgotten = open_session(tmp_path, FIXED)
    forgotten.run(inputs(2))
    assert device[0].blocks
    del forgotten
    gc.collect()
    assert device[0].blocks == {}


def test_no_layer_is_marked_for_a_profiler_at_every_call(device: Any, tmp_path: Path) -> None:
    open_session(tmp_path, FIXED)
    assert device[1].opened[0].nvtx_verbosity == "none"


def test_who_loads_a_bundle_says_whether_its_engines_are_graphs(bundle: Path) -> None:
    with pytest.raises(UsageError, match="holds no TensorRT engine"):
        runtime.load(bundle, cuda_graph=True)
    manifest = runtime.read_manifest(bundle)
    mixed = replace(manifest, engines=(*manifest.engines, ENGINE, FIXED))
    for wanted in (True, False):
        found = {engine.id: engine.execution for engine in with_cuda_graph(mixed, wanted).engines}
        assert [found.pop(engine.id) for engine in (ENGINE, FIXED)] == [{"cuda_graph": wanted}] * 2
        assert set(found.values()) == {None}  # ONNX Runtime's
    assert with_cuda_graph(mixed, None) is mixed


@pytest.mark.parametrize("execution", [{"cuda_graph": 1}, {"cuda_graphs": True}, [True]])
def test_an_execution_that_is_not_understood_is_refused(execution: Any) -> None:
    with pytest.raises(BundleError, match="'execution' is"):
        Engine.from_json({**FIXED.to_json(), "execution": execution})
    assert Engine.from_json(FIXED.to_json()) == FIXED
    assert "execution" not in ENGINE.to_json()


def test_an_engine_that_does_not_say_who_wrote_it_is_refused(device: Any, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not say which TensorRT"):
        open_session(tmp_path, replace(ENGINE, requires={"compute_capability": ["8.6"]}))


def test_without_such_a_gpu_both_sides_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"needs a GPU of compute capability 9\.9, here is .+: run it on such a device"):
        open_session(tmp_path, replace(ENGINE, requires={**ENGINE.requires, "compute_capability": ["9.9"]}))


def test_another_version_is_refused_with_both_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("essm_deploy.runtime.requirements.find_device", lambda capabilities: DEVICE)
    monkeypatch.setattr("essm_deploy.runtime.requirements.tensorrt_module", lambda engine, name: FakeTensorRt)
    with pytest.raises(UnavailableError, match=r"needs tensorrt_rtx ==1\.6\.0, here is 1\.7\.1"):
        open_session(tmp_path, replace(ENGINE, requires={**ENGINE.requires, "tensorrt_rtx": "==1.6.0"}))


def test_a_missing_tensorrt_names_its_pip_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("essm_deploy.runtime.requirements.find_device", lambda capabilities: DEVICE)
    monkeypatch.setattr("essm_deploy.runtime.requirements.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"pip install 'essm-deploy\[tensorrt-rtx\]'"):
        open_session(tmp_path, ENGINE)


@pytest.fixture
def built(tmp_path: Path) -> Callable[[Path], Emitter]:
    """Builds engines for the GPU that is here."""
    from essm_deploy.backends.emit import prepare
    from essm_deploy.backends.tensorrt import CLASSIC, RTX, TensorRtBackend
    from essm_deploy.families import open_checkpoint
    from essm_deploy.runtime.cuda import cuda_devices

    capability = cuda_devices()[0].compute_capability
    flavour = next((flavour for flavour in (RTX, CLASSIC) if flavour.missing((capability,)) is None), None)
    if flavour is None:
        pytest.skip(f"no TensorRT here builds for this GPU: {RTX.missing((capability,))}")
    return lambda checkpoint: prepare(tmp_path, open_checkpoint(checkpoint), [4], 1, TensorRtBackend(flavour, (capability,)))


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True], ids=["enqueued", "captured"])
def test_a_built_engine_runs_on_this_gpu_as_its_graph_does_on_the_cpu(
    keywords: Path, tmp_path: Path, built: Callable[[Path], Emitter], graph: bool
) -> None:
    engine = replace(built(keywords).sequence(4), execution={"cuda_graph": graph})
    ours, theirs = open_session(tmp_path, engine), open_session(tmp_path, graph_of(engine))
    rng = np.random.default_rng(0)
    for length in (20, 24, 7):  # a graph that had caught the first call's numbers would repeat them
        given = {"features": rng.standard_normal((1, 24, 10)).astype(np.float32), "lengths": np.array([length])}
        np.testing.assert_allclose(ours.run(given)["logits"], theirs.run(given)["logits"], rtol=1e-4, atol=1e-5)
    assert ours.execution["cuda_graph"] is graph  # type: ignore[attr-defined]
    features = rng.standard_normal((1, 24, 10)).astype(np.float32)
    assert runtime.SequenceEngine(tmp_path, engine).run(features=features)["logits"].shape == (1, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True], ids=["enqueued", "captured"])
def test_a_stream_on_this_gpu_answers_as_on_the_cpu_and_its_state_stays_there(
    language_model: Path, tmp_path: Path, built: Callable[[Path], Emitter], graph: bool
) -> None:
    engines = [e for e in built(language_model).bundle([4]) if e.kind != "sequence"]
    there = [replace(engine, execution={"cuda_graph": graph}) for engine in engines]
    pools = EnginePool(tmp_path, there, model="m"), EnginePool(tmp_path, map(graph_of, engines), model="m")
    tokens = np.random.default_rng(0).integers(0, 30, (1, 48))
    first = next(engine for engine in engines if engine.kind == "stream" and engine.chunk == 1)
    with Stream(pools[0], pools[0].engines[first.id]) as ours, Stream(pools[1], pools[1].engines[first.id]) as theirs:
        for piece in np.split(tokens, [1, 2, 3, 4, 36, 37, 38], axis=1):
            np.testing.assert_allclose(ours.push(piece), theirs.push(piece), rtol=1e-4, atol=1e-5)
    execution = pools[0].session(first.id).execution  # type: ignore[attr-defined]
    assert (execution["state_on_device"], execution["cuda_graph"]) == (True, graph)
