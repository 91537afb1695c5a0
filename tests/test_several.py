"""Several targets and limits in one run, rebuilds of the winner, and devices elsewhere: the pipeline around `choose`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from essm_deploy import compile, runtime
from essm_deploy.compile import Request, job, parity
from essm_deploy.compile.job import key_of, look_up
from essm_deploy.compile.several import STATUSES, together
from essm_deploy.errors import OutputError, UnavailableError, UsageError, VerificationError, WorkerError
from essm_deploy.profiling import sweep
from essm_deploy.profiling.locks import THIS_MACHINE, hold_devices
from essm_deploy.profiling.measure import Settings
from essm_deploy.profiling.verdict import LOOKS, Attempt, Limits, Measurement
from essm_deploy.resources import data_folder
from essm_deploy.targets.local import LocalLauncher
from tests.test_compile import FAST, QUIET, device, request, simulated

__all__ = ["device"]


def limited(checkpoint: Path, milliseconds: float, target: str = "cpu", **changes: Any) -> Request:
    return replace(
        request(checkpoint, max_latency_ms=milliseconds), target=target, requirement=f"{milliseconds:g}ms", **changes
    )


@pytest.fixture
def other(tmp_path: Path) -> str:
    """A second target of this machine."""
    path = tmp_path / "other.toml"
    path.write_text((data_folder("targets") / "cpu.toml").read_text().replace('name = "cpu"', 'name = "other"'))
    return str(path)


def test_several_limits_share_the_measurements_of_one_target(keywords: Path, tmp_path: Path, device: list[int]) -> None:
    said: list[str] = []
    requests = [limited(keywords, limit) for limit in (5.0, 1.6, 1.3, 1.0)]
    document = compile.build_all(requests, tmp_path / "out", said.append)
    assert [run["budget"] for run in document["runs"]] == [8, 4, 2, None]
    assert document["status"] == "nothing_fits"
    assert set(device) == {2, 4, 8}
    assert max(Counter(device).values()) <= LOOKS  # four limits, and no engine is looked at more often than for one
    assert [run["requirement"] for run in document["runs"]] == ["5ms", "1.6ms", "1.3ms", "1ms"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cpu-1.3ms", "cpu-1.6ms", "cpu-5ms"]
    assert runtime.read_manifest(tmp_path / "out" / "cpu-1.6ms").default == "k4-sequence"
    assert any("measured already" in line for line in said)


def test_a_target_has_measurements_of_its_own(keywords: Path, tmp_path: Path, device: list[int], other: str) -> None:
    requests = [replace(request(keywords, max_latency_ms=5.0), target=target) for target in ("cpu", other)]
    document = compile.build_all(requests, tmp_path / "out", QUIET)
    assert device == [8, 8]
    assert [(run["target"], run["bundle"]) for run in document["runs"]] == [
        (name, str(tmp_path / "out" / name)) for name in ("cpu", "other")
    ]


def test_other_settings_are_other_numbers(keywords: Path, tmp_path: Path, device: list[int]) -> None:
    paced = replace(limited(keywords, 5.0), requirement="paced", settings=replace(FAST, pace_ms=20.0))
    compile.build_all([limited(keywords, 5.0), paced], tmp_path / "out", QUIET)
    assert device == [8, 8]


def test_profiles_of_several_limits_name_one_record(keywords: Path, device: list[int]) -> None:
    document = compile.profile_all([limited(keywords, 1.6), limited(keywords, 5.0)], QUIET)
    (path,) = {run["observations"] for run in document["runs"]}
    assert Path(path).is_file()
    assert max(Counter(device).values()) <= LOOKS


def test_what_is_wrong_with_the_last_is_said_before_the_first_is_measured(
    keywords: Path, tmp_path: Path, device: list[int], other: str
) -> None:
    out = tmp_path / "out"
    for wrong, error in (
        (limited(keywords, 5.0, budgets=(99,)), UsageError),
        (limited(keywords, 5.0, target="nowhere.toml"), UsageError),
        (limited(keywords, 5.0, target="h100"), UnavailableError),
        (limited(keywords, 1.6), UsageError),  # the first one again
    ):
        with pytest.raises(error):
            compile.build_all([limited(keywords, 1.6), wrong], out, QUIET)
    (out / "cpu-5ms").mkdir(parents=True)
    (out / "cpu-5ms" / "letter.txt").write_text("mine")
    with pytest.raises(OutputError):
        compile.build_all([limited(keywords, 1.6), limited(keywords, 5.0)], out, QUIET)
    assert device == []


def test_several_bundles_are_not_put_into_a_bundle(keywords: Path, tmp_path: Path, device: list[int]) -> None:
    compile.build(request(keywords), tmp_path / "out", QUIET)
    with pytest.raises(OutputError, match="is a bundle; several go into a directory of their own"):
        compile.build_all([limited(keywords, 1.6), limited(keywords, 5.0)], tmp_path / "out", QUIET)


def test_a_run_that_fails_does_not_stop_the_others_and_nothing_is_measured_twice(
    keywords: Path, tmp_path: Path, device: list[int], other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, broken = sweep.measure_engine, True

    def measure(launcher: Any, root: Any, engine: Any, settings: Settings, **kwargs: Any) -> Measurement:
        if broken and settings.pace_ms:
            raise WorkerError("the connection was cut")
        return calm(launcher, root, engine, settings, **kwargs)

    monkeypatch.setattr(sweep, "measure_engine", measure)
    paced = limited(keywords, 5.0, target=other, settings=replace(FAST, pace_ms=20.0))
    requests = [paced, limited(keywords, 5.0)]
    document = compile.build_all(requests, tmp_path / "out", QUIET)
    failed, fine = document["runs"]
    assert document["status"] == "failed"
    assert (failed["status"], failed["error"], failed["exit_code"], failed["budget"]) == ("failed", "WorkerError", 4, None)
    assert "the connection was cut" in failed["message"]
    assert (fine["status"], fine["budget"]) == ("ok", 8)
    broken = False
    device.clear()
    assert compile.build_all(requests, tmp_path / "out", QUIET)["status"] == "ok"
    assert device == [8]  # what had failed; the other one was kept


def test_the_worst_status_is_that_of_all() -> None:
    assert STATUSES == ("ok", "estimated", "inconclusive", "nothing_fits", "failed")
    for worst in STATUSES:
        runs = [{"status": status} for status in STATUSES[: STATUSES.index(worst) + 1]]
        assert together(runs)["status"] == together(runs[::-1])["status"] == worst


def test_an_interrupted_run_of_several_resumes_as_a_whole(
    keywords: Path, tmp_path: Path, device: list[int], other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, pressed = sweep.measure_engine, [False, True]

    def interrupted(*args: Any, **kwargs: Any) -> Measurement:
        if pressed.pop(0):
            raise KeyboardInterrupt
        return calm(*args, **kwargs)

    requests = [replace(request(keywords, max_latency_ms=5.0), target=target) for target in ("cpu", other)]
    monkeypatch.setattr(sweep, "measure_engine", interrupted)
    with pytest.raises(KeyboardInterrupt, match="the same command resumes"):
        compile.build_all(requests, tmp_path / "out", QUIET)
    monkeypatch.setattr(sweep, "measure_engine", calm)
    device.clear()
    said: list[str] = []
    compile.build_all(requests, tmp_path / "out", said.append)
    assert device == [8]
    assert any("resuming an interrupted sweep: 1 measurement(s) kept" in line for line in said)


def test_a_device_that_is_being_measured_is_left_alone(keywords: Path, tmp_path: Path, device: list[int]) -> None:
    held = hold_devices([THIS_MACHINE], QUIET, wait=False)
    with held, pytest.raises(UnavailableError, match=r"this machine is being measured by process \d+ since"):
        compile.build(request(keywords), tmp_path / "out", QUIET)
    assert device == []
    assert compile.plan(request(keywords), QUIET)["status"] == "planned"


def test_the_winner_is_built_anew_elsewhere_and_measured_as_often_as_asked(
    keywords: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots: list[tuple[int, Path]] = []

    def measure(launcher: Any, root: Path, engine: Any, settings: Any, *, budget: int, attempt: Attempt) -> Measurement:
        roots.append((budget, root))
        assert (root / engine.files[0]).is_file()
        return simulated(budget, attempt)

    monkeypatch.setattr(sweep, "measure_engine", measure)
    document = compile.build(replace(request(keywords, max_latency_ms=1.6), rebuilds=2), tmp_path / "out", QUIET)
    assert (document["budget"], document["status"], document["spread"]["builds"]) == (4, "ok", 3)
    assert document["spread"]["rebuilds"] == "fits"
    assert len({root for budget, root in roots if budget == 4}) == 3
    assert compile.build(request(keywords, max_latency_ms=1.6), tmp_path / "out", QUIET)["spread"] is None


def test_a_winner_that_is_slower_when_built_anew_is_not_certain(
    keywords: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots: list[Path] = []

    def measure(launcher: Any, root: Path, engine: Any, settings: Any, *, budget: int, attempt: Attempt) -> Measurement:
        roots.append(root)
        return simulated(budget if root == roots[0] else 8, attempt)

    monkeypatch.setattr(sweep, "measure_engine", measure)
    document = compile.build(replace(request(keywords, max_latency_ms=1.6), rebuilds=1), tmp_path / "out", QUIET)
    assert (document["budget"], document["status"], document["certain"]) == (4, "inconclusive", False)
    assert "built anew it did not" in document["message"]
    assert runtime.read_manifest(tmp_path / "out").default == "k4-sequence"


def test_the_document_says_where_a_smaller_budget_is_the_better_one(keywords: Path, tmp_path: Path, device: list[int]) -> None:
    quality = json.loads((keywords / "quality.json").read_text())
    quality["budgets"]["4"] = 0.95
    (keywords / "quality.json").write_text(json.dumps(quality))
    document = compile.build(request(keywords), tmp_path / "out", QUIET)
    assert document["budget"] == 8
    assert document["better_quality_below"] == {
        "budget": 4,
        "quality": {"metric": "accuracy", "value": 0.95, "direction": "higher", "retention": 0.95 / 0.91},
    }
    assert compile.build(request(keywords, max_latency_ms=1.6), tmp_path / "out", QUIET)["better_quality_below"] is None


def test_every_integer_can_be_a_candidate(keywords: Path, tmp_path: Path, device: list[int]) -> None:
    asked = Request(keywords, "cpu", Limits(max_latency_ms=1.55), budgets="all", settings=FAST)
    document = compile.build(asked, tmp_path / "out", QUIET)
    assert [candidate["budget"] for candidate in document["candidates"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (document["budget"], document["quality"]) == (5, None)
    assert len(set(device)) <= 5  # log2(8) + 2


def test_a_batch_is_measured_on_engines_that_take_any(keywords: Path, tmp_path: Path) -> None:
    asked = Request(keywords, "cpu", budgets=(2,), settings=replace(FAST, batch=4))
    document = compile.build(asked, tmp_path / "out", QUIET)
    assert document["environment"]["settings"]["batch"] == 4
    assert runtime.read_manifest(tmp_path / "out").engines[0].inputs[0].shape[0] == "batch"
    with pytest.raises(UsageError, match="a stream is measured one at a time"):
        compile.build(replace(asked, kind="stream"), tmp_path / "out", QUIET)


@dataclass(frozen=True)
class Elsewhere(LocalLauncher):
    """A worker of this machine that counts as another one's."""

    remote: ClassVar[bool] = True


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Targets are reached as if over the network; returns the engines that were run there to be compared."""
    ran: list[str] = []
    plain = parity.run_engine

    def run(launcher: Any, root: Path, engine: Any, inputs: Mapping[str, NDArray[Any]], threads: Any) -> Any:
        ran.append(engine.id)
        return plain(launcher, root, engine, inputs, threads)

    monkeypatch.setattr(job, "launcher_for", lambda target, *rest: Elsewhere())
    monkeypatch.setattr("essm_deploy.compile.parity.run_engine", run)
    return ran


@pytest.mark.parametrize("kind", ["sequence", "stream"])
def test_an_engine_for_another_machine_is_compared_there(
    keywords: Path, tmp_path: Path, device: list[int], elsewhere: list[str], kind: Any
) -> None:
    document = compile.build(replace(request(keywords), kind=kind), tmp_path / "out", QUIET)
    assert elsewhere == ["k8-sequence" if kind == "sequence" else "k8-stream-1"]
    assert 0 < document["verification"]["max_rel_error"] < 1e-5


def test_an_engine_that_is_off_there_fails_the_build(
    keywords: Path, tmp_path: Path, device: list[int], elsewhere: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = parity.run_engine

    def off(*args: Any) -> dict[str, NDArray[Any]]:
        return {name: array * np.float32(1.001) for name, array in plain(*args).items()}

    monkeypatch.setattr("essm_deploy.compile.parity.run_engine", off)
    with pytest.raises(VerificationError, match=r"k8-sequence differs on the device from the float64 reference by 1.0e-03"):
        compile.build(request(keywords), tmp_path / "out", QUIET)
    assert not (tmp_path / "out").exists()


def test_answers_too_long_for_a_line_are_asked_for_piece_by_piece(
    keywords: Path, tmp_path: Path, device: list[int], elsewhere: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("essm_deploy.compile.parity._BYTES_A_CALL", 1)
    compile.build(request(keywords), tmp_path / "out", QUIET)
    assert elsewhere == ["k8-sequence"] * 4


def test_versions_of_the_device_are_part_of_the_key(
    keywords: Path, elsewhere: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of(look_up(request(keywords), QUIET))
    assert key_of(look_up(request(keywords), QUIET)) == before
    monkeypatch.setattr(
        "essm_deploy.profiling.facts.DeviceFacts._asked", lambda self: {"versions": {"onnxruntime": "0"}, "machine": {}}
    )
    assert key_of(look_up(request(keywords), QUIET)) != before
