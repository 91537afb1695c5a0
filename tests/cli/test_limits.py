"""Limits, pace and targets on the command line: what is asked for, how it is answered, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from essm_deploy import compile
from essm_deploy.cli.answer import print_answers
from essm_deploy.cli.compiling import exit_code
from tests.cli.test_cli import _quick, run

__all__ = ["_quick"]

MINE = 'name = "mine"\ndescription = "of my own"\nmax_latency = "5s"\nthreads = 1\n'


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(MINE)
    return tmp_path / "mine.toml"


def planned(capsys: pytest.CaptureFixture[str], *args: Any) -> dict[str, Any]:
    code, out, err = run(capsys, "build", *args, "--dry-run", "-q")
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


def test_a_budget_file_states_limits_and_settings(keywords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, keywords, "--budget-file", "realtime-keyword")
    assert (plan["requirement"], plan["kind"]) == ("realtime-keyword", "stream")
    assert plan["limits"]["max_latency_ms"] == 5.0
    assert (plan["settings"]["pace_ms"], plan["settings"]["statistic"]) == (10.0, "p99")


def test_options_take_the_place_of_a_files_own_values(keywords: Path, mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--max-latency", "2ms", "--threads", "2", "--pace", "8ms", "--statistic", "p50", "--confidence", "90%"]
    plan = planned(capsys, keywords, "--budget-file", mine, *options)
    settings = plan["settings"]
    assert (plan["requirement"], plan["limits"]["max_latency_ms"]) == ("mine", 2.0)
    assert (settings["threads"], settings["pace_ms"], settings["statistic"], settings["confidence"]) == (2, 8.0, "p50", 0.9)
    assert planned(capsys, keywords, "--budget-file", mine)["settings"]["threads"] == 1


def test_every_limit_is_answered_for_every_target(keywords: Path, mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--max-latency", "1ms", "--max-latency", "2s"]
    runs = planned(capsys, keywords, *limits)["runs"]
    assert [(entry["target"], entry["requirement"]) for entry in runs] == [("cpu", "1ms"), ("cpu", "2000ms")]
    files = ["--budget-file", mine, "--budget-file", "batch-offline"]
    runs = planned(capsys, keywords, *files)["runs"]
    assert [entry["requirement"] for entry in runs] == ["mine", "batch-offline"]
    assert [entry["settings"]["threads"] for entry in runs] == [1, runs[1]["settings"]["threads"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget-file", "realtime"], "did you mean 'realtime-keyword'?"),
        (["--budget-file", "nowhere.toml"], "cannot be read"),
        (["--budget-file", "batch-offline", "--budget-file", "batch-offline"], "--budget-file batch-offline is given twice"),
        (["--budget-file", "batch-offline", "--max-latency", "1ms", "--max-latency", "2ms"], "several --max-latency beside"),
        (["--budget-file", "realtime-keyword", "--max-latency", "20ms"], "longer than pace 10 ms"),
        (["--budget-file", "realtime-keyword", "--batch", "8"], "streams are measured one by one"),
        (["--max-latency", "10ms", "--max-latency", "10 ms"], "--max-latency 10ms is given twice"),
        (
            ["--max-latency", "10ms", "--pace", "5ms"],
            "the options contradict each other: max_latency 10 ms is longer than pace 5 ms",
        ),
        (["--pace", "10"], "has no unit"),
        (["--confidence", "95"], "not above 0 and at most 1"),
        (["--target", "cpu", "--target", "cpu"], "--target cpu is given twice"),
        (["--target", "cpu", "--target", "cpuu"], "did you mean 'cpu'?"),
        (["--rebuilds", "99"], "0<=x<=20"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_measured(
    keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, "build", keywords, "-q", "-o", tmp_path / "out", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not (tmp_path / "out").exists()


def test_two_limits_make_two_bundles_and_the_worst_exit_code(
    keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ["--max-latency", "5s", "--max-latency", "10ns", "--rebuilds", "0"]
    code, out, _ = run(capsys, "build", keywords, *limits, "-q", "-o", tmp_path / "out", "--format", "json")
    document = json.loads(out)
    assert (code, document["status"], document["schema_version"]) == (1, "nothing_fits", "1.0")
    assert [(entry["status"], entry["budget"]) for entry in document["runs"]] == [("ok", 8), ("nothing_fits", None)]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["cpu-5000ms"]


def test_the_answer_names_the_limits_and_the_spread_between_builds(
    keywords: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "build", keywords, "--budget-file", mine, "--budgets", "2", "-q", "-o", tmp_path / "out")
    assert code == 0
    assert out.startswith("K=2 on cpu for mine: the largest budget that meets every limit\n")
    assert "  builds      p95 " in out
    assert "  cold start  " in out


def test_a_pace_is_measured_beside_calls_that_follow_one_another(
    keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--pace", "4ms", "--budgets", "2", "-q", "-o", tmp_path / "out"]
    code, out, _ = run(capsys, "build", keywords, *arguments)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("  unpaced")]
    assert "back to back (measured, " in line


def test_a_profile_of_two_limits_prints_a_table_for_each(keywords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--max-latency", "5s", "--max-latency", "6s"]
    code, out, _ = run(capsys, "profile", keywords, *limits, "-q")
    lines = out.splitlines()
    assert code == 0
    assert [line for line in lines if line.startswith("cpu for")] == ["cpu for 5000ms", "cpu for 6000ms"]
    assert sum(line.startswith("budget") for line in lines) == 2
    assert sum(line.startswith("samples: ") for line in lines) == 2


def answer(capsys: pytest.CaptureFixture[str], document: dict[str, Any], **changes: Any) -> list[str]:
    print_answers({**document, **changes})
    return capsys.readouterr().out.splitlines()


def test_the_answer_says_what_is_out_of_the_ordinary(
    keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(run(capsys, "build", keywords, "--budgets", "2", "-q", "--format", "json", "-o", tmp_path / "out")[1])
    plain = answer(capsys, document)
    assert not [line for line in plain if "precision" in line or "fell back" in line or "smaller one" in line]
    half = answer(capsys, document, precision="fp16")
    assert "  precision   fp16" in half
    fallen = answer(capsys, document, fell_back={"from": "fp16", "reason": "node x overflows"})
    assert "  precision   fp32" in fallen
    assert "  fell back   from fp16: node x overflows" in fallen
    better = {"budget": 1, "quality": {"metric": "accuracy", "value": 0.95}}
    assert any(
        line.endswith("K=1, a smaller one, has the better accuracy 0.95")
        for line in answer(capsys, document, better_quality_below=better)
    )
    spread = {"builds": 2, "statistic": "p95", "latency_ms": [1.0, 1.5], "relative_range": 0.5, "rebuilds": "exceeds"}
    doubtful = answer(capsys, document, spread=spread, certain=False, status="inconclusive", message="built anew")
    assert doubtful[0] == "K=2 on cpu: it met every limit, but not when it was built anew"
    assert "  builds      p95 1 ms, 1.5 ms: 50.0% apart; built anew, it exceeds the limit" in doubtful
    assert doubtful[-1] == "inconclusive: built anew"
    failed = {"status": "failed", "target": "jetson", "requirement": None, "budget": None, "message": "the host is down"}
    assert answer(capsys, {"runs": [document, failed]})[-1] == "failed on jetson: the host is down"


@pytest.mark.parametrize(
    ("codes", "worst"), [((0, 0), 0), ((0, 5), 5), ((5, 1), 1), ((1, 3), 3), ((3, 4, 0), 4), ((5, 4, 1), 4), ((4, 2), 2)]
)
def test_the_exit_code_of_several_runs_is_the_worst(codes: tuple[int, ...], worst: int) -> None:
    statuses = {0: "ok", 1: "nothing_fits", 5: "inconclusive"}
    runs = [{"status": statuses.get(code, "failed"), "exit_code": code} for code in codes]
    assert exit_code({"status": "x", "runs": runs}) == exit_code({"status": "x", "runs": runs[::-1]}) == worst


def test_rebuilds_are_made_by_build_where_a_latency_is_limited(
    keywords: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def answered(request: Any, *rest: Any) -> Any:
        asked.append(request.rebuilds)
        raise KeyboardInterrupt

    monkeypatch.setattr(compile, "build", answered)
    monkeypatch.setattr(compile, "profile", answered)
    for arguments in (
        ["build"],
        ["build", "--max-latency", "1s"],
        ["build", "--rebuilds", "3"],
        ["profile", "--max-latency", "1s"],
    ):
        assert run(capsys, arguments[0], keywords, *arguments[1:], "-q")[0] == 130
    assert asked == [0, 1, 3, 0]
