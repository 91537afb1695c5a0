"""TensorRT engines, built by TensorRT-RTX on a machine with no GPU: what they are, what is proved of them, what is refused."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from essm_deploy.backends import find_backend
from essm_deploy.backends.base import anew
from essm_deploy.backends.emit import Emitter, prepare
from essm_deploy.backends.tensorrt import CLASSIC, RTX, TensorRtBackend
from essm_deploy.backends.tensorrt.network import MAX_BATCH, builder_config
from essm_deploy.errors import BuildError, UnavailableError
from essm_deploy.families import open_checkpoint
from essm_deploy.profiling.planner import layer_engine
from essm_deploy.runtime.manifest import Engine, TensorInfo
from essm_deploy.spectral import bank_cache
from essm_deploy.spectral.lowerings.base import ConvProblem
from essm_deploy.spectral.planning import lawful_lowerings
from essm_deploy.targets.description import find_target
from tests.checkpoints import BYTES, make_checkpoint

SM86 = TensorRtBackend(RTX, ("8.6",))


def emitter(folder: Path, checkpoint: Path, backend: Any = SM86, **options: Any) -> Emitter:
    folder.mkdir(exist_ok=True)
    batch = options.pop("batch", 1)
    return prepare(folder, open_checkpoint(checkpoint), [4], batch, backend, **options)


@pytest.mark.tensorrt_rtx
def test_an_engine_its_log_and_its_proof_lie_beside_the_graph(keywords: Path, tmp_path: Path) -> None:
    engine = emitter(tmp_path / "engines", keywords).sequence(4)
    assert engine.backend == "tensorrt-rtx"
    assert engine.files == ("k4-sequence.sm86.engine", "k4-sequence.sm86.log")
    assert engine.graph[0] == "k4-sequence.onnx"
    assert all((tmp_path / "engines" / name).stat().st_size for name in (*engine.files, *engine.graph))
    assert engine.requires == {"tensorrt_rtx": f"=={RTX.version}", "compute_capability": ["8.6"]}
    assert "Engine generation completed" in (tmp_path / "engines" / engine.files[1]).read_text()
    assert Engine.from_json(engine.to_json()) == engine


@pytest.mark.tensorrt_rtx
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_island_is_proved_fp32_from_tensorrts_own_network(keywords: Path, tmp_path: Path, precision: Any) -> None:
    proof = emitter(tmp_path / "engines", keywords, precision=precision).sequence(4).proof
    assert proof is not None
    assert (proof["strongly_typed"], proof["tf32"]) == (True, False)
    assert proof["island"]["dtype"] == "FLOAT"
    assert proof["island"]["nodes"] >= 2 * 3  # of two layers: the convolution, the gating, and what arranges them
    assert proof["island"]["tensors"] > proof["island"]["nodes"]
    assert proof["verified_on_device"] == "not yet verified"


@pytest.mark.tensorrt_rtx
def test_the_planners_single_layers_are_built_like_any_graph(tmp_path: Path) -> None:
    problem = ConvProblem(np.random.default_rng(0).standard_normal((4, 32)), 32, 8)
    engine = SM86.build(tmp_path, layer_engine(tmp_path, problem, lawful_lowerings(problem)[0], SM86))
    assert engine.proof is not None
    assert engine.proof["island"]["dtype"] == "FLOAT"


@pytest.mark.tensorrt_rtx
def test_one_engine_serves_several_compute_capabilities(keywords: Path, tmp_path: Path) -> None:
    engine = emitter(tmp_path / "engines", keywords, TensorRtBackend(RTX, ("8.6", "8.9", "12.0"))).sequence(4)
    assert engine.files[0] == "k4-sequence.sm86-sm89-sm120.engine"
    assert engine.requires["compute_capability"] == ["8.6", "8.9", "12.0"]


@pytest.mark.tensorrt_rtx
def test_a_free_batch_becomes_an_optimization_profile(keywords: Path, tmp_path: Path) -> None:
    engine = emitter(tmp_path / "engines", keywords, batch="batch").sequence(4)
    assert engine.proof is not None
    assert engine.proof["batch"] == [1, 1, MAX_BATCH]


@pytest.mark.tensorrt_rtx
def test_streams_and_their_anchor_are_built_too(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "bytes", BYTES, None, smooth=True, seq_len=300, k_max=4, budgets=[2, 4])
    made = emitter(tmp_path / "engines", checkpoint)
    engines = [made.stream(4, 1), made.anchor()]
    assert [engine.kind for engine in engines if engine] == ["stream", "anchor"]
    assert all(engine.proof and engine.proof["island"]["nodes"] for engine in engines if engine)


@pytest.mark.tensorrt_rtx
def test_a_node_that_tensorrt_does_not_take_is_named_with_the_reason(keywords: Path, tmp_path: Path) -> None:
    made = emitter(tmp_path / "engines", keywords, planner=lambda problem: lawful_lowerings(problem, "dft")[0])
    with pytest.raises(BuildError, match=r"layers\.0/spectral/DFT \(DFT\): Plugin not found.*--lowering"):
        made.sequence(4)
    assert (tmp_path / "engines" / "k4-sequence.sm86.log").is_file()


def small_graph(path: Path, island: int, name: str = "layers.0/spectral/MatMul") -> Engine:
    """u [1, 4, 4] -> cast -> a product -> cast -> y, the product in the element type `island`."""
    kind = helper.tensor_dtype_to_np_dtype(island)
    nodes = [
        helper.make_node("Cast", ["u"], ["in"], name="layers.0/spectral/Cast", to=island),
        helper.make_node("MatMul", ["matrix", "in"], ["product"], name=name),
        helper.make_node("Cast", ["product"], ["y"], name="layers.0/spectral/Cast_1", to=TensorProto.FLOAT),
    ]
    ports = [helper.make_tensor_value_info(port, TensorProto.FLOAT, [1, 4, 4]) for port in ("u", "y")]
    matrix = onnx.numpy_helper.from_array(np.eye(4).astype(kind), "matrix")
    graph = helper.make_graph(nodes, "small", [ports[0]], [ports[1]], [matrix])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path / "small.onnx")
    tensors = [TensorInfo(port, "float32", (1, 4, 4)) for port in ("u", "y")]
    return Engine("small", "k1", "sequence", "tensorrt-rtx", "fp32", ("small.onnx",), (tensors[0],), (tensors[1],))


@pytest.mark.tensorrt_rtx
def test_an_island_that_tensorrt_would_compute_in_half_is_not_built(tmp_path: Path) -> None:
    assert SM86.build(tmp_path, small_graph(tmp_path, TensorProto.FLOAT)).proof
    with pytest.raises(BuildError, match=r"in HALF; the spectral island must be FLOAT"):
        SM86.build(tmp_path, small_graph(tmp_path, TensorProto.FLOAT16))
    assert (tmp_path / "small.sm86.log").read_text() != ""


@pytest.mark.tensorrt_rtx
def test_an_island_that_cannot_be_found_is_not_built(tmp_path: Path) -> None:
    engine = small_graph(tmp_path, TensorProto.FLOAT)
    model = onnx.load(tmp_path / "small.onnx")
    for node in model.graph.node:
        node.name = node.name.replace("spectral", "elsewhere")
    onnx.save(model, tmp_path / "small.onnx")
    with pytest.raises(BuildError, match="fp32 cannot be proved"):
        SM86.build(tmp_path, engine)


@pytest.mark.tensorrt_rtx
def test_tf32_is_on_until_it_is_cleared_and_the_flag_is_read_back() -> None:
    from essm_deploy.runtime.tensorrt_log import captured

    trt = RTX.load()
    with captured(trt) as (logger, _):
        builder = trt.Builder(logger)
        assert builder.create_builder_config().get_flag(trt.BuilderFlag.TF32)
        assert not builder_config(trt, builder).get_flag(trt.BuilderFlag.TF32)


class _Stubborn:
    """A builder whose TF32 flag cannot be cleared."""

    class BuilderFlag:
        TF32 = 7

    class ProfilingVerbosity:
        DETAILED = 2

    __version__ = "0.0"

    def create_builder_config(self) -> Any:
        return self

    def clear_flag(self, flag: int) -> None:
        pass

    def get_flag(self, flag: int) -> bool:
        return True


def test_a_tensorrt_that_keeps_tf32_is_refused() -> None:
    with pytest.raises(BuildError, match="keeps TF32 on"):
        builder_config(_Stubborn, _Stubborn())


@pytest.mark.tensorrt_rtx
def test_what_was_built_before_is_not_built_again_and_anything_else_is(
    keywords: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = emitter(tmp_path / "first", keywords).sequence(4)
    compiled: list[str] = []
    plain = TensorRtBackend._compile

    def counted(self: TensorRtBackend, *arguments: Any) -> dict[str, Any]:
        compiled.append(self.capabilities[0])
        return plain(self, *arguments)

    monkeypatch.setattr(TensorRtBackend, "_compile", counted)
    assert emitter(tmp_path / "again", keywords).sequence(4) == first
    content = [(tmp_path / folder / first.files[0]).read_bytes() for folder in ("first", "again")]
    assert content[0] == content[1]
    assert compiled == []
    emitter(tmp_path / "rebuilt", keywords, anew(TensorRtBackend(RTX, ("8.6",)))).sequence(4)
    assert compiled.pop() == "8.6"
    emitter(tmp_path / "elsewhere", keywords, TensorRtBackend(RTX, ("8.9",))).sequence(4)
    assert compiled == ["8.9"]
    other = make_checkpoint(tmp_path / "other", layer_norm_eps=1e-6)
    emitter(tmp_path / "changed", other).sequence(4)
    assert compiled == ["8.9", "8.6"]


@pytest.mark.tensorrt_rtx
def test_a_damaged_cache_entry_is_built_anew(keywords: Path, tmp_path: Path) -> None:
    first = emitter(tmp_path / "first", keywords).sequence(4)
    for path in bank_cache.directory().with_name("engines").glob("*/engine"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    emitter(tmp_path / "again", keywords).sequence(4)
    sizes = [(tmp_path / folder / first.files[0]).read_bytes()[-1:] for folder in ("first", "again")]
    assert sizes[0] == sizes[1]


@pytest.mark.tensorrt_rtx
def test_what_the_rtx_flavour_does_not_build_for_is_said_before_anything_is_built() -> None:
    assert RTX.missing(("8.6", "12.0")) is None
    assert RTX.missing(("9.0",)) == f"tensorrt-rtx {RTX.version} does not build for compute capability 9.0"


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    real: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in modules else real(name, *rest))


@pytest.mark.parametrize("target", ["rtx3090", "rtx4090", "rtx5090", "t4", "a100", "l4"])
def test_without_either_tensorrt_the_pip_lines_are_named(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    without(monkeypatch, "tensorrt", "tensorrt_rtx")
    with pytest.raises(UnavailableError) as caught:
        find_backend(find_target(target))
    for extra in ("tensorrt", "tensorrt-rtx"):
        assert f"pip install 'essm-deploy[{extra}]'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", ["h100", "h200", "b200", "jetson-orin-nano", "jetson-agx-orin"])
def test_where_only_the_classic_flavour_builds_the_rtx_one_is_not_advertised(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    without(monkeypatch, "tensorrt")
    with pytest.raises(UnavailableError, match=r"pip install 'essm-deploy\[tensorrt\]'") as caught:
        find_backend(find_target(target))
    assert "tensorrt-rtx" not in str(caught.value)


def test_the_classic_flavour_says_that_it_needs_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Classic:
        __version__ = "10.3.0"

    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: object())
    monkeypatch.setattr("essm_deploy.backends.tensorrt.flavours._import", lambda name: Classic)
    monkeypatch.setattr("essm_deploy.backends.tensorrt.flavours.find_device", lambda capabilities: None)
    missing = CLASSIC.missing(("8.7",))
    assert missing is not None
    assert missing.startswith("tensorrt builds on the device itself, which has compute capability 8.7; here is ")
    Classic.__version__ = "8.6.1"
    assert "tensorrt 8.6.1 is too old, >=10.3 is needed" in (CLASSIC.missing(("8.7",)) or "")


@pytest.mark.tensorrt_rtx
@pytest.mark.slow
@pytest.mark.parametrize("target", ["rtx3090", "rtx4090", "rtx5090"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("budget", [2, 8, 32])
def test_shipped_checkpoints_build_for_every_generation(
    shipped: Path, tmp_path: Path, target: str, precision: Any, budget: int
) -> None:
    """The classifier's and the language model's sequence and stream engines, and the anchor of the latter's state."""
    backend, kinds = find_backend(find_target(target)), {}
    for checkpoint in sorted(shipped.parent.iterdir()):
        folder = tmp_path / checkpoint.name
        folder.mkdir()
        made = prepare(folder, open_checkpoint(checkpoint), [budget], 1, backend, precision=precision)
        engines = made.bundle([budget])
        kinds[checkpoint.name] = {(engine.kind, engine.chunk) for engine in engines}
        for engine in engines:
            assert engine.proof is not None
            assert engine.proof["island"]["dtype"] == engine.proof["compiled"]["dtype"] == "FLOAT"
            assert engine.proof["compiled"]["layers"] >= 1
            assert not engine.proof["tf32"]
    steps = {("sequence", None), ("stream", 1)}
    assert kinds["bytes"] == {*steps, ("stream", 64), ("anchor", None)}
    assert kinds["keywords"] == {*steps, ("stream", 10)}
