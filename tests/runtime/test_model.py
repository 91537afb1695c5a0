from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import essm_deploy.runtime as runtime
from essm_deploy.errors import (
    BuildError,
    BundleError,
    EssmError,
    InputError,
    IntegrityError,
    UnavailableError,
    UsageError,
)
from essm_deploy.runtime.files import sha256_file
from tests.runtime.streams import write_stream_bundle
from tests.runtime.tiny import LENGTH, WIDTH, expected, write_graph

TOLERANCE = 1e-6  # float32 sums of at most 18 terms of order one


def features(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rewrite(bundle: Path, engine: int = 1, **changes: Any) -> None:
    """Change an engine's entry, and make the hashes right again."""
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    content["engines"][engine].update(changes)
    content["files"] = {name: sha256_file(bundle / name) for name in content["files"]}
    path.write_text(json.dumps(content))


def test_the_public_names_are_these() -> None:
    assert sorted(runtime.__all__) == [
        "Budget",
        "Engine",
        "Generation",
        "Manifest",
        "Model",
        "ModelInfo",
        "OrtSession",
        "SequenceEngine",
        "Session",
        "Statistics",
        "Stream",
        "StreamEngine",
        "StreamInfo",
        "StreamState",
        "TensorInfo",
        "generate",
        "load",
        "open_session",
        "read_manifest",
        "select_engine",
        "stream_outputs",
        "verify_files",
    ]
    for name in runtime.__all__:
        assert hasattr(runtime, name)
    public = ("run", "classify", "labels", "frontend", "manifest", "engine", "provider", "threads", "length")
    assert set(public) <= {*dir(runtime.Model), "labels", "manifest", "engine"}


def test_a_batch_is_computed_as_in_numpy(bundle: Path) -> None:
    model = runtime.load(bundle)
    x = features(4, LENGTH, WIDTH)
    logits = model.run(features=x)["logits"]
    np.testing.assert_allclose(logits, expected(x, np.full(4, LENGTH)), atol=TOLERANCE)
    assert model.provider == "CPUExecutionProvider"
    assert model.labels == ["no", "yes"]
    assert model.length == LENGTH


def test_one_example_without_a_batch_axis_gives_outputs_without_one(bundle: Path) -> None:
    x = features(LENGTH, WIDTH)
    logits = runtime.load(bundle).run(features=x)["logits"]
    assert logits.shape == (2,)
    np.testing.assert_allclose(logits, expected(x[None], np.array([LENGTH]))[0], atol=TOLERANCE)


@pytest.mark.parametrize("length", range(1, LENGTH + 1))
def test_a_shorter_input_is_padded_and_its_length_filled_in(bundle: Path, length: int) -> None:
    x = features(2, length, WIDTH)
    logits = runtime.load(bundle).run(features=x)["logits"]
    np.testing.assert_allclose(logits, expected(x, np.full(2, length)), atol=TOLERANCE)


def test_lengths_may_be_given(bundle: Path) -> None:
    model, x = runtime.load(bundle), features(2, LENGTH, WIDTH)
    lengths = np.array([2, 5], dtype=np.int32)
    np.testing.assert_allclose(model.run(features=x, lengths=lengths)["logits"], expected(x, lengths), atol=TOLERANCE)
    np.testing.assert_allclose(model.run(features=x[0], lengths=2)["logits"], expected(x[:1], lengths[:1])[0], atol=TOLERANCE)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "missing"),
        ({"featurs": features(LENGTH, WIDTH)}, "unknown input 'featurs'"),
        ({"features": features(LENGTH + 1, WIDTH)}, "at most 6"),
        ({"features": features(0, WIDTH)}, "empty"),
        ({"features": features(0, LENGTH, WIDTH)}, "empty"),
        ({"features": features(LENGTH, WIDTH + 1)}, "shape"),
        ({"features": features(LENGTH)}, "shape"),
        ({"features": features(LENGTH, WIDTH).astype(np.float64)}, "float64"),
        ({"features": [["a"] * WIDTH] * LENGTH}, "float32"),
        ({"features": features(LENGTH, WIDTH), "lengths": 0}, "expected 1 to 6"),
        ({"features": features(LENGTH, WIDTH), "lengths": 7}, "expected 1 to 6"),
        ({"features": features(LENGTH, WIDTH), "lengths": 2.0}, "whole numbers"),
        ({"features": features(2, LENGTH, WIDTH), "lengths": [1]}, "2 whole numbers"),
    ],
)
def test_a_wrong_input_is_refused_in_one_line(bundle: Path, inputs: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        runtime.load(bundle).run(**inputs)
    assert "\n" not in str(caught.value)


def test_a_fixed_batch_takes_that_batch_only(bundle: Path) -> None:
    write_graph(bundle / "graphs" / "k8.onnx", batch=1)
    engine = runtime.read_manifest(bundle).engine("k8-sequence").to_json()
    for info in (*engine["inputs"], *engine["outputs"]):
        info["shape"][0] = 1
    rewrite(bundle, **engine)
    model = runtime.load(bundle)
    assert model.run(features=features(1, LENGTH, WIDTH))["logits"].shape == (1, 2)
    with pytest.raises(InputError, match=r"float32 \[1, 6, 3\]"):
        model.run(features=features(2, LENGTH, WIDTH))


def test_budget_and_engine_are_chosen_by_name_or_number(bundle: Path) -> None:
    assert runtime.load(bundle).engine.id == "k8-sequence"
    assert runtime.load(bundle, budget=2).engine.id == "k2-sequence"
    assert runtime.load(bundle, budget="k2").engine.id == "k2-sequence"
    assert runtime.load(bundle, engine="k2-sequence", budget=2).engine.id == "k2-sequence"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": 6}, "k2, k8"),
        ({"engine": "k6"}, "k2-sequence, k8-sequence"),
        ({"engine": "k2-sequence", "budget": 8}, "not of the budget 8"),
        ({"threads": 0}, "threads"),
    ],
)
def test_what_the_bundle_does_not_hold_is_a_usage_error(bundle: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        runtime.load(bundle, **options)


def test_the_thread_count_is_explicit_and_recorded(bundle: Path) -> None:
    assert runtime.load(bundle, threads=1).threads == 1
    assert runtime.load(bundle).threads >= 1


@pytest.mark.parametrize(
    ("requires", "error", "said"),
    [
        ({"onnxruntime": ">=99.1"}, UnavailableError, "needs onnxruntime >=99.1, here is"),
        ({"onnxruntime": ">=1.0,<1.1"}, UnavailableError, "here is"),
        ({"onnxruntime": "latest"}, BundleError, "latest"),
        ({"provider": "NoSuchExecutionProvider"}, UnavailableError, "NoSuchExecutionProvider"),
        ({"npu": "one"}, UnavailableError, "cannot check"),
        ({"compute_capability": "9.9"}, UnavailableError, "compute capability 9.9, here is"),
        ({"compute_capability": ["9.8", "9.9"]}, UnavailableError, "compute capability 9.8 or 9.9, here is"),
        ({"compute_capability": 8.6}, BundleError, "compute_capability"),
        ({"compute_capability": []}, BundleError, "compute_capability"),
    ],
)
def test_an_unmet_requirement_names_both_sides(
    bundle: Path, requires: dict[str, str], error: type[EssmError], said: str
) -> None:
    rewrite(bundle, requires=requires)
    with pytest.raises(error, match=said):
        runtime.load(bundle)


def test_an_unknown_backend_is_unavailable(bundle: Path) -> None:
    rewrite(bundle, backend="abacus")
    with pytest.raises(UnavailableError, match="abacus"):
        runtime.load(bundle)


def test_a_flipped_byte_stops_the_load_unless_verification_is_off(bundle: Path) -> None:
    path = bundle / "graphs" / "weights.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(IntegrityError):
        runtime.load(bundle)
    assert runtime.load(bundle, verify=False).run(features=features(LENGTH, WIDTH))


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "other.bin"])
def test_a_graph_may_read_only_the_files_that_its_engine_lists(bundle: Path, location: str) -> None:
    write_graph(bundle / "graphs" / "k8.onnx", location=location)
    for path in (bundle / "weights.bin", bundle / "graphs" / "other.bin"):
        path.write_bytes((bundle / "graphs" / "weights.bin").read_bytes())
    rewrite(bundle)
    with pytest.raises(BundleError, match="not among the files"):
        runtime.load(bundle)


@pytest.mark.parametrize("content", [b"", b"not a graph", b"\x08\x08", b"\x3a\xff\xff\xff\xff\x0f"])
def test_a_file_that_is_no_graph_is_refused(bundle: Path, content: bytes) -> None:
    (bundle / "graphs" / "k8.onnx").write_bytes(content)
    rewrite(bundle)
    with pytest.raises((BundleError, BuildError)) as caught:
        runtime.load(bundle)
    assert "\n" not in str(caught.value)


def test_graph_and_manifest_must_agree_on_shapes(bundle: Path) -> None:
    engine = runtime.read_manifest(bundle).engine("k8-sequence").to_json()
    engine["inputs"][0]["shape"][1] = LENGTH + 1
    rewrite(bundle, **engine)
    with pytest.raises(BundleError, match="features"):
        runtime.load(bundle)


def test_a_bundle_without_a_front_end_cannot_classify(bundle: Path) -> None:
    model = runtime.load(bundle)
    assert model.frontend is None
    with pytest.raises(InputError, match="front end"):
        model.classify(np.zeros(16000, dtype=np.float32))


def test_classify_ranks_the_labels_with_scores_that_sum_to_one(bundle: Path) -> None:
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    content["model"]["frontend"] = {
        "type": "log_mel",
        "n_mels": WIDTH,
        "frames": LENGTH,
        "clip_samples": LENGTH * 160,
    }
    path.write_text(json.dumps(content))
    waveform = 0.1 * np.random.default_rng(1).standard_normal(500).astype(np.float32)
    model = runtime.load(bundle)
    ranked = model.classify(waveform)
    assert model.frontend is not None
    rows, length = model.frontend(waveform)
    logits = expected(rows[None], np.array([length]))[0]
    assert ranked[0]["label"] == model.labels[int(np.argmax(logits))]
    assert ranked[0]["score"] >= ranked[1]["score"]
    assert sum(entry["score"] for entry in ranked) == pytest.approx(1.0, abs=1e-12)
    difference = np.log(ranked[0]["score"] / ranked[1]["score"])
    assert difference == pytest.approx(abs(logits[0] - logits[1]), abs=1e-5)  # float32 logits of order ten


BLOCKER = """
import sys
ALLOWED = {"numpy", "onnxruntime", "essm_deploy", "flatbuffers", "packaging", "google", "coloredlogs", "humanfriendly"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ALLOWED or top in sys.stdlib_module_names or top.startswith("_"):
            return None
        raise ImportError(f"{name} is not of the runtime's closure")
sys.meta_path.insert(0, Refuse())
import essm_deploy.runtime.worker, essm_deploy.runtime as runtime, numpy
model = runtime.load(sys.argv[1])
model.run(features=numpy.zeros((2, 3), numpy.float32))
with runtime.load(sys.argv[2]).stream() as stream:
    b"".join(runtime.generate(stream, b"", 3))
ours = sorted({".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("essm_deploy.")})
print(ours)
"""


def test_the_import_closure_is_the_standard_library_numpy_and_onnxruntime(bundle: Path, tmp_path: Path) -> None:
    streaming = write_stream_bundle(tmp_path / "streaming")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER, str(bundle), str(streaming)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout.replace("'", '"'))) <= {
        "essm_deploy.atomic",
        "essm_deploy.errors",
        "essm_deploy.frontend",
        "essm_deploy.runtime",
        "essm_deploy.units",
    }
