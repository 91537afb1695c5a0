"""`--precision` through the whole pipeline: what a target computes in, what a model bears, and what is built instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essm_deploy import compile, runtime
from essm_deploy.bundle.verify import verify_bundle
from essm_deploy.checkpoint import write_checkpoint
from essm_deploy.compile import Request
from essm_deploy.errors import PrecisionError, UsageError
from essm_deploy.families import open_checkpoint
from essm_deploy.profiling import sweep
from essm_deploy.resources import data_folder
from tests.test_compile import FAST, QUIET, simulated


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured does not matter here."""
    monkeypatch.setattr(sweep, "measure_engine", lambda *args, budget, attempt: simulated(budget, attempt))


@pytest.fixture
def target(tmp_path: Path) -> str:
    """This machine, described as one that computes in fp16 too, which ONNX Runtime does by Casts."""
    text = (data_folder("targets") / "cpu.toml").read_text()
    path = tmp_path / "half.toml"
    path.write_text(text.replace('["fp32"]', '["fp32", "fp16"]').replace('name = "cpu"', 'name = "half"'))
    return str(path)


@pytest.fixture
def loud(keywords: Path, tmp_path: Path) -> Path:
    """A model whose second layer computes beyond what fp16 can hold."""
    checkpoint = open_checkpoint(keywords)
    name = "layers.1.ffn.up.weight"
    tensors = {**checkpoint.tensors, name: (checkpoint.tensors[name] * 3e4).astype("f4")}
    write_checkpoint(tmp_path / "loud", checkpoint.config, tensors, checkpoint.quality, "")
    return tmp_path / "loud"


def test_an_fp16_bundle_says_so_and_replays(keywords: Path, tmp_path: Path, target: str) -> None:
    request = Request(keywords, target, precision="fp16", settings=FAST)
    document = compile.build(request, tmp_path / "out", QUIET)
    assert (document["precision"], document["fell_back"]) == ("fp16", None)
    manifest, checks = verify_bundle(tmp_path / "out")
    assert manifest.default == "k8-sequence-fp16"
    assert {engine.id: engine.precision for engine in manifest.engines} == {
        f"k8-{kind}-fp16": "fp16" for kind in ("sequence", "stream-1", "stream-10")
    }
    assert {check.bound for check in checks} == {2e-3}
    logits = runtime.load(tmp_path / "out").run(features=np.zeros((1, 24, 10), "f4"))["logits"]
    assert logits.dtype == np.float32


@pytest.mark.parametrize("asked", [{"precision": "fp16"}, {"precision": "fp32", "precision_fallback": "bf16"}])
def test_a_target_computes_in_what_it_lists(keywords: Path, tmp_path: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"target 'cpu' computes in fp32, not in (fp16|bf16)"):
        compile.build(Request(keywords, "cpu", settings=FAST, **asked), tmp_path / "out", QUIET)


def test_an_overflow_fails_the_build_and_names_the_node(loud: Path, tmp_path: Path, target: str) -> None:
    request = Request(loud, target, precision="fp16", settings=FAST)
    with pytest.raises(PrecisionError, match=r"k\d-sequence-fp16: node layers\.1/Gemm_1 \(Gemm\) reaches"):
        compile.build(request, tmp_path / "out", QUIET)
    assert not (tmp_path / "out").exists()


def test_another_precision_is_built_only_if_told_to(loud: Path, tmp_path: Path, target: str) -> None:
    said: list[str] = []
    request = Request(loud, target, precision="fp16", precision_fallback="fp32", settings=FAST)
    document = compile.build(request, tmp_path / "out", said.append)
    assert document["precision"] == "fp32"
    assert document["fell_back"]["from"] == "fp16"
    assert "layers.1/Gemm_1" in document["fell_back"]["reason"]
    assert any("not in fp16" in line for line in said)
    assert {engine.precision for engine in runtime.read_manifest(tmp_path / "out").engines} == {"fp32"}
