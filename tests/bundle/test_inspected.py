"""`verify --engine`: the layers of every engine are read on the device, and the manifest says what was found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from essm_deploy import compile
from essm_deploy.backends.tensorrt.inspector import listed_layers
from essm_deploy.bundle.inspected import verify_inspected
from essm_deploy.compile import Request
from essm_deploy.errors import IntegrityError, UnavailableError, UsageError, VerificationError
from essm_deploy.runtime.manifest import Engine, read_manifest
from tests.backends.test_inspector import as_json
from tests.checkpoints import BYTES, make_checkpoint
from tests.test_compile import QUIET

pytestmark = pytest.mark.tensorrt_rtx


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequence and stream engines and an anchor, in bf16."""
    folder = tmp_path_factory.mktemp("inspected")
    checkpoint = make_checkpoint(folder / "bytes", BYTES, None, smooth=True, seq_len=300, k_max=4, budgets=[4])
    compile.build(Request(checkpoint, "rtx3090", precision="bf16"), folder / "out", QUIET)
    return folder / "out"


@pytest.fixture
def bundle(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "bundle"))


def inspector(root: Path, engine: Engine) -> tuple[str, str]:
    """As on the device: the engine's layers, which the builder listed too."""
    log = (root / engine.files[1]).read_text().splitlines()
    line = next(line for line in reversed(log) if "] Layers: Name: " in line)
    kinds = {"FLOAT": "Float", "BF16": "BFloat16", "": "Int64"}
    return as_json(listed_layers(line), lambda kind: {"Datatype": kinds[kind]}), "tensorrt_rtx on an imaginary GPU"


def test_every_engine_is_proved_and_the_manifest_says_by_whom(bundle: Path) -> None:
    before = read_manifest(bundle)
    proofs = verify_inspected(bundle, inspector)
    after = read_manifest(bundle)
    assert set(proofs) == {engine.id for engine in before.engines}
    assert {engine.kind for engine in before.engines} == {"sequence", "stream", "anchor"}
    for engine in after.engines:
        assert engine.proof is not None
        found = engine.proof["inspected"]
        assert (found["dtype"], found["by"]) == ("FLOAT", "tensorrt_rtx on an imaginary GPU")
        assert found["layers"] == engine.proof["compiled"]["layers"] >= 1
        assert engine.proof["verified_on_device"] == "not yet verified"  # its numbers are another question
    assert before.default == after.default


def test_an_engine_that_is_off_leaves_the_manifest_as_it_was(bundle: Path) -> None:
    before = (bundle / "manifest.json").read_bytes()

    def half(root: Path, engine: Engine) -> tuple[str, str]:
        text, by = inspector(root, engine)
        return (text.replace('"Datatype": "Float"', '"Datatype": "BFloat16"') if engine.kind == "stream" else text), by

    with pytest.raises(VerificationError, match=r"k4-stream-\d+-bf16: .* is BF16; the spectral island must be FLOAT"):
        verify_inspected(bundle, half)
    assert (bundle / "manifest.json").read_bytes() == before


def test_without_the_gpu_both_sides_are_named(bundle: Path) -> None:
    before = (bundle / "manifest.json").read_bytes()
    with pytest.raises(UnavailableError, match=r"compute capability 8\.6, here is"):
        verify_inspected(bundle)
    assert (bundle / "manifest.json").read_bytes() == before


def test_a_bundle_without_tensorrt_engines_is_told_so(tmp_path: Path) -> None:
    from tests.runtime.tiny import write_bundle

    with pytest.raises(UsageError, match="holds no TensorRT engine"):
        verify_inspected(write_bundle(tmp_path / "tiny"))


def test_a_changed_file_is_noticed_first(bundle: Path) -> None:
    path = bundle / read_manifest(bundle).engines[0].graph[0]
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(IntegrityError):
        verify_inspected(bundle, inspector)


@pytest.mark.gpu
def test_on_this_gpu_the_inspector_proves_what_was_built_for_it(tmp_path: Path) -> None:
    """What the text above only imagines: a real inspector's JSON, and its layers held against the rules."""
    from essm_deploy.backends.emit import prepare
    from essm_deploy.backends.tensorrt import CLASSIC, RTX, TensorRtBackend
    from essm_deploy.backends.tensorrt.inspector import inspected_layers, prove_layers
    from essm_deploy.bundle.inspected import _opened
    from essm_deploy.families import open_checkpoint
    from essm_deploy.runtime.cuda import cuda_devices

    capability = cuda_devices()[0].compute_capability
    flavour = next((f for f in (RTX, CLASSIC) if f.missing((capability,)) is None), None)
    if flavour is None:
        pytest.skip("no TensorRT here builds for this GPU")
    checkpoint = make_checkpoint(tmp_path / "bytes", BYTES, None, smooth=True, seq_len=300, k_max=4, budgets=[4])
    for precision in ("fp32", "fp16"):
        root = tmp_path / precision
        root.mkdir()
        backend = TensorRtBackend(flavour, (capability,))
        made = prepare(root, open_checkpoint(checkpoint), [4], 1, backend, precision=precision)  # type: ignore[arg-type]
        for engine in made.bundle([4]):
            text, _ = _opened(root, engine)
            proof = prove_layers(root / engine.graph[0], inspected_layers(text, engine.id), engine.id)
            assert proof.tensors > 0
