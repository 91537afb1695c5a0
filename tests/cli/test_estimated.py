"""Building for a GPU that is not here: what is printed, what is in the bundle, and what is said of what nobody has measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from essm_deploy import runtime
from essm_deploy.errors import UnavailableError
from essm_deploy.runtime.manifest import read_manifest
from essm_deploy.runtime.requirements import TENSORRT
from tests.cli.test_cli import device_only, run

pytestmark = pytest.mark.tensorrt_rtx


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A bundle for the RTX 3090 whose limit leaves budgets on both sides, and its document."""
    from essm_deploy import compile
    from essm_deploy.profiling.verdict import Limits
    from tests.checkpoints import make_checkpoint

    folder = tmp_path_factory.mktemp("estimated")
    checkpoint = make_checkpoint(folder / "keywords")
    said: list[str] = []
    everything = compile.build(compile.Request(checkpoint, "rtx3090"), folder / "all", said.append)
    times = {c["budget"]: c["latency_ms"]["estimate"] for c in everything["candidates"]}
    request = compile.Request(checkpoint, "rtx3090", Limits(max_latency_ms=(times[4] + times[8]) / 2))
    document = compile.build(request, folder / "out", said.append)
    assert said[-1].startswith("engine built, not yet measured")
    return folder / "out", document


def test_every_figure_says_that_it_is_an_estimate(built: tuple[Path, dict[str, Any]]) -> None:
    _, document = built
    assert (document["status"], document["basis"], document["certain"]) == ("estimated", "estimated", False)
    assert document["note"] == "engine built, not yet measured"
    for figures in (document, *document["candidates"]):
        assert figures["latency_ms"]["basis"] == figures["memory"]["basis"] == "estimated"
        assert not {"p50", "p95", "p99", "upper"} & figures["latency_ms"].keys()
        assert figures["memory"]["bounded_by"] == "device_bytes"  # what a limit of memory bounds here, and on the GPU itself
    assert document["efficiency"]["source"].startswith("assumed, not calibrated")
    assert "measured" not in json.dumps(document).replace("not yet measured", "").replace("has been measured yet", "")


def test_the_largest_budget_that_fits_by_estimate_comes_with_its_neighbours(built: tuple[Path, dict[str, Any]]) -> None:
    path, document = built
    manifest = read_manifest(path)
    assert document["budget"] == 4
    assert [budget.axes["k"] for budget in manifest.budgets] == [2, 4, 8]
    assert manifest.default == "k4-sequence"
    assert {engine.budget for engine in manifest.engines if engine.kind == "sequence"} == {"k2", "k4", "k8"}


def test_the_bundle_says_what_its_engines_need_and_what_was_proved(built: tuple[Path, dict[str, Any]]) -> None:
    path, _ = built
    for engine in read_manifest(path).engines:
        assert engine.files[0].endswith(".sm86.engine")
        assert engine.requires["compute_capability"] == ["8.6"]
        assert set(engine.requires) & set(TENSORRT)
        assert engine.proof is not None
        assert engine.proof["island"]["dtype"] == "FLOAT"
        assert (engine.proof["tf32"], engine.proof["verified_on_device"]) == (False, "not yet verified")
        assert (engine.profile or {"basis": "estimated"})["basis"] == "estimated"


def test_verify_replays_the_graphs_and_says_which_engines_nobody_has_run(
    built: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = built
    code, out, _ = run(capsys, "verify", path)
    assert code == 0
    assert out.count("not yet verified") == len([e for e in read_manifest(path).engines if e.kind != "anchor"])
    document = json.loads(run(capsys, "verify", path, "--format", "json")[1])
    assert {engine["judged"] for engine in document["engines"]} == {"graph"}
    assert all(engine["max_rel_error"] < 2e-6 for engine in document["engines"] if "sequence" in engine["engine"])


def test_on_device_is_refused_where_the_device_is_not(
    built: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "verify", built[0], "--on-device")
    assert code == 3
    assert "compute capability 8.6" in err


def test_reading_the_layers_takes_the_device_and_until_then_the_manifest_says_so(
    built: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "verify", built[0], "--engine")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "compute capability 8.6" in err
    for engine in read_manifest(built[0]).engines:
        assert engine.proof is not None
        assert engine.proof["inspected"] == "not yet verified"
        assert engine.proof["compiled"]["dtype"] == "FLOAT"


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--on-device", "--engine"), "one after the other"), (("--cuda-graph",), "go with --on-device")],
)
def test_what_does_not_go_together_is_said(
    built: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    code, _, err = run(capsys, "verify", built[0], *options)
    assert code == 2
    assert said in err


def test_a_device_without_the_compiler_verifies_it(built: tuple[Path, dict[str, Any]]) -> None:
    done = device_only("verify", str(built[0]))
    assert done.returncode == 0, done.stderr


def test_an_app_without_the_gpu_learns_what_is_needed_and_what_is_here(built: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(UnavailableError, match=r"needs a GPU of compute capability 8\.6, here is"):
        runtime.load(built[0])


def test_one_flipped_bit_of_an_engine_is_noticed(
    built: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    copy = Path(shutil.copytree(built[0], tmp_path / "copy"))
    engine = copy / read_manifest(copy).engines[0].files[0]
    content = bytearray(engine.read_bytes())
    content[len(content) // 2] ^= 1
    engine.write_bytes(content)
    code, _, err = run(capsys, "verify", copy)
    assert code == 1
    assert engine.name in err


def test_build_says_it_in_words(keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("build", keywords, "--target", "rtx3090", "--max-latency", "10ms", "--budgets", "2", "-q")
    code, out, _ = run(capsys, *arguments, "-o", tmp_path / "out")
    assert code == 0
    assert "K=2 on rtx3090: the largest budget that meets every limit by estimate" in out
    assert "engine built, not yet measured" in out
    assert "estimated, limit 10 ms" in out


def test_nothing_fits_is_an_answer_here_too(keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("build", keywords, "--target", "rtx3090", "--max-latency", "10ns", "-q", "-o", tmp_path / "out")
    code, out, _ = run(capsys, *arguments)
    assert code == 1
    assert "by estimate" in out
    assert "admits budget 2" in out
    assert not (tmp_path / "out").exists()


def test_profile_does_not_pretend(keywords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "profile", keywords, "--target", "rtx3090", "-q")
    assert (code, out) == (3, "")
    assert "nothing can be measured" in err


def test_a_dry_run_says_on_what_the_choice_would_rest(keywords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, "build", keywords, "--target", "rtx3090", "--dry-run", "-q")[1])
    assert (document["backend"], document["basis"]) == ("tensorrt-rtx", "estimated")


def test_inspect_support_lists_every_node_of_every_graph(keywords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", keywords, "--support", "--format", "json")
    graphs = json.loads(out)["graphs"]
    assert code == 0
    assert {graph["graph"] for graph in graphs} == {"k2-sequence.onnx", "k2-stream-1.onnx", "k2-stream-10.onnx"}
    assert all(counts["supported"] == counts["nodes"] > 0 for graph in graphs for counts in graph["backends"].values())
    assert "onnxruntime" in run(capsys, "inspect", keywords, "--support")[1]
