"""The command line: what is printed where, and the exit code of every kind of end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from essm_deploy import compile
from essm_deploy.cli import cli
from essm_deploy.cli.guard import guarded

LATENCY = {"p50", "p95", "p99", "upper", "basis"}
MEMORY = {"peak_bytes", "anonymous_bytes", "file_bytes", "device_bytes", "baseline_bytes", "bounded_by"}
BUILD = {"schema_version", "status", "target", "budget", "bundle", "limits", "latency_ms", "memory", "quality", "verification"}
CANDIDATE = {"budget", "latency_ms", "memory", "quality", "verdict", "basis"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement of a tenth of the usual length: what is tested here is the printing."""
    from essm_deploy.profiling import measure

    plain = measure.Settings
    short = {"min_samples": 100, "min_seconds": 0.05, "max_seconds": 4.0, "warmup_seconds": 0.2}
    monkeypatch.setattr(measure, "Settings", lambda **kwargs: plain(**{**short, **kwargs}))


def run(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["essm-deploy", *map(str, args)])
        code = guarded(cli, "essm-deploy")
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_build_prints_one_document(keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "build", keywords, "--max-latency", "5s", "-o", tmp_path / "out", "--format", "json")
    document = json.loads(out)
    assert code == 0
    assert document.keys() >= BUILD
    assert document["latency_ms"].keys() >= LATENCY
    assert document["memory"].keys() >= MEMORY
    assert document["quality"].keys() >= {"metric", "value", "retention"}
    assert document["verification"]["max_rel_error"] < 2e-6
    assert all(candidate.keys() >= CANDIDATE for candidate in document["candidates"])
    assert (document["status"], document["budget"], document["bundle"]) == ("ok", 8, str(tmp_path / "out"))
    assert "K=8: p95" in err


def test_build_says_the_answer_in_words(keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "build", keywords, "--max-latency", "5s", "-o", tmp_path / "out", "-q")
    assert (code, err) == (0, "")
    assert out.startswith("K=8 on cpu: the largest budget that meets every limit\n")
    assert "(measured, " in out
    assert "limit 5 s" in out


def test_nothing_fits_exits_with_one(keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "build", keywords, "--max-latency", "10ns", "-o", tmp_path / "out", "--format", "json")
    document = json.loads(out)
    assert (code, document["status"], document["bundle"]) == (1, "nothing_fits", None)
    assert "admits budget 2" in document["message"]


def test_profile_measures_every_trained_budget_without_limits(keywords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "profile", keywords, "--format", "json", "-q")
    document = json.loads(out)
    assert code == 0
    assert [c["budget"] for c in document["candidates"]] == [2, 4, 8]
    assert all(c["verdict"] == "valid" and len(c["samples"]) >= 100 for c in document["candidates"])


def test_profile_prints_a_table(keywords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "profile", keywords, "--all-K", "--target", "cpu", "-q")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["budget", "K=2", "K=4", "K=8", "samples:"]


def test_a_dry_run_measures_and_writes_nothing(keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "build", keywords, "--dry-run", "-o", tmp_path / "out")
    assert (code, json.loads(out)["candidates"]) == (0, [2, 4, 8])
    assert not (tmp_path / "out").exists()


def test_the_shipped_model_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "build", "--dry-run")
    assert (code, json.loads(out)["candidates"]) == (0, [2, 3, 4, 5, 6, 8, 12, 16, 24, 32])
    assert "keywords: K up to 32" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--max-latency", "10"], 2, "has no unit"),
        (["--max-latency", "-1ms"], 2, "not positive"),
        (["--max-latency", "10 parsecs"], 2, "unknown unit 'parsecs'"),
        (["--max-memory", "200Mb"], 2, "unknown unit"),
        (["--min-retention", "98"], 2, "not above 0 and at most 1"),
        (["--budgets", "4,x"], 2, "write 4,8,12"),
        (["--budgets", "0"], 2, "write 4,8,12"),
        (["--budgets", "9"], 2, "budget 9 is out of range"),
        (["--target", "cpuu"], 2, "did you mean 'cpu'?"),
        (["--target", "nowhere.toml"], 2, "cannot be read"),
        (["--target", "h100"], 3, "pip install 'essm-deploy[tensorrt]'"),
        (["--lowering", "magic"], 4, "'magic' is unknown"),
        (["--precision", "fp16"], 2, "target 'cpu' computes in fp32, not in fp16"),
        (["--precision", "fp8"], 2, "is not one of 'fp32', 'fp16', 'bf16'"),
        (["--no-such-option"], 2, "No such option"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    got, out, err = run(capsys, "build", keywords, "-q", "-o", tmp_path / "out", *arguments)
    assert (got, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["keywords"]


def test_a_missing_checkpoint_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "build", tmp_path / "nothing", "-q")
    assert code == 2
    assert "expected a checkpoint directory" in err


def test_inspect_shows_checkpoints_and_bundles(keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", keywords, "--format", "json")
    document = json.loads(out)
    assert (code, document["kind"], document["k_max"]) == (0, "checkpoint", 8)
    assert [b["quality"] for b in document["budgets"]] == [0.80, 0.90, 0.91]
    run(capsys, "build", keywords, "-q", "-o", tmp_path / "out")
    code, out, _ = run(capsys, "inspect", tmp_path / "out", "--format", "json")
    assert (code, json.loads(out)["kind"], json.loads(out)["default"]) == (0, "bundle", "k8-sequence")
    assert "k8-sequence" in run(capsys, "inspect", tmp_path / "out")[1]
    assert "K=4" in run(capsys, "inspect", keywords)[1]


def test_verify_replays_and_notices_one_flipped_bit(keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out_dir = tmp_path / "out"
    run(capsys, "build", keywords, "-q", "-o", out_dir)
    code, out, _ = run(capsys, "verify", out_dir, "--format", "json")
    assert (code, json.loads(out)["status"]) == (0, "ok")
    weights = out_dir / "weights.bin"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    code, out, err = run(capsys, "verify", out_dir)
    assert (code, out) == (1, "")
    assert "weights.bin" in err


def test_targets_says_what_is_ready_and_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "targets", "--format", "json")
    states = {t["name"]: t["state"] for t in json.loads(out)["targets"]}
    assert code == 0
    assert states["cpu"] == "ready"
    assert states["h100"].startswith("unavailable")
    assert "rtx3090" in run(capsys, "targets")[1]


def test_doctor_reports_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor", "--format", "json")
    report = json.loads(out)
    assert code == 0
    assert report["versions"]["onnxruntime"]
    assert "CPUExecutionProvider" in report["providers"]
    assert report["machine"]["physical_cores"] >= 1
    assert report["memory"]["available_bytes"] > 0
    assert all(report["extras"]["compiler"].values())
    assert "extra compiler: complete" in run(capsys, "doctor")[1]


def test_help_works_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("build", "profile", "verify", "run", "inspect", "targets", "doctor"):
        assert run(capsys, command, "--help")[0] == 0
        assert command in run(capsys, "--help")[1]


WITHOUT = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] in {blocked!r} else real(name, package)
sys.argv = ["essm-deploy", *{args!r}]
from essm_deploy.cli import main
main()
"""


def device_only(*args: str) -> subprocess.CompletedProcess[str]:
    """Run a command line as if only the base install were there."""
    blocked = {"scipy", "onnx", "safetensors", "pydantic", "platformdirs", "torch", "soundfile"}
    script = WITHOUT.format(blocked=blocked, args=args)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)


def test_without_the_compiler_building_names_the_pip_line() -> None:
    done = device_only("build")
    assert done.returncode == 3
    assert "pip install 'essm-deploy[compiler]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_the_compiler_a_device_can_verify_inspect_and_examine_itself(
    keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run(capsys, "build", keywords, "-q", "-o", out)
    for args in (["verify", str(out)], ["inspect", str(out)], ["doctor"], ["--help"]):
        done = device_only(*args)
        assert done.returncode == 0, done.stderr
    assert "extra compiler: missing" in device_only("doctor").stdout


def test_an_unexpected_error_is_called_a_bug(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "plan", lambda *args: 1 / 0)
    code, _, err = run(capsys, "build", "--dry-run")
    assert code == 4
    assert "this is a bug in essm-deploy" in err


def test_a_reader_that_goes_away_is_no_error() -> None:
    script = f"{sys.executable} -m essm_deploy.cli doctor | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
