from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from essm_deploy.backends.emit import prepare
from essm_deploy.backends.onnxruntime import OnnxRuntimeBackend
from essm_deploy.families import open_checkpoint
from essm_deploy.graph.builder import GraphBuilder
from essm_deploy.graph.weights import data_file
from essm_deploy.runtime.manifest import Engine
from tests.benchmarks import engines, machine, match, report, turns
from tests.benchmarks.contender import ELSEWHERE, FLOOR, OURS, PEERS, Contender, Setting, preparation
from tests.benchmarks.floor import floor_model, products, write_floor
from tests.benchmarks.prefill import GROUPS
from tests.benchmarks.ratios import fastest, ratio, summary
from tests.benchmarks.workloads import inputs_of, relative_error

BUDGET = 4


@pytest.fixture
def built(language_model: Path, tmp_path: Path) -> tuple[Path, list[Engine]]:
    """The engines of a small language model, with floors and record, as `ours.emit` leaves them (which plans by measuring)."""
    root = tmp_path / "engines"
    root.mkdir()
    emitter = prepare(root, open_checkpoint(language_model), [BUDGET], 1, OnnxRuntimeBackend())
    emitted = list(emitter.bundle([BUDGET]))
    floors = [write_floor(root, engine) for engine in emitted if engine.kind != "anchor"]
    record = {"engines": [e.to_json() for e in (*emitted, *floors)], "lowerings": emitter.lowerings}
    (root / engines.RECORD).write_text(json.dumps(record))
    return root, emitted


def shapes_of(root: Path, engine: Engine) -> Counter[object]:
    """Operator and shapes of every product of an engine's graph."""
    model = onnx.load(root / engine.files[0], load_external_data=False)
    return Counter((p.node.op_type, p.shapes, p.output) for p in products(model))


def test_the_floor_has_exactly_the_products_of_its_engine(built: tuple[Path, list[Engine]]) -> None:
    root, emitted = built
    for engine in (e for e in emitted if e.kind != "anchor"):
        floor = engines.engine_of(root, engine.id + engines.FLOOR_SUFFIX)
        graph = onnx.load(root / floor.files[0], load_external_data=False).graph
        assert {node.op_type for node in graph.node} <= {"MatMul", "Gemm"}
        assert shapes_of(root, floor) == shapes_of(root, engine)
        assert len(graph.node) > 8  # two layers of gate, convolution, projection and FFN, and the head


def test_constants_of_the_engine_are_the_same_bytes_in_the_floor(built: tuple[Path, list[Engine]]) -> None:
    root, emitted = built
    floor = onnx.load(root / f"{emitted[0].id}-floor.onnx", load_external_data=False)
    engine = onnx.load(root / emitted[0].files[0], load_external_data=False)
    stored = {t.name: t.SerializeToString() for t in engine.graph.initializer}
    assert all(stored[t.name] == t.SerializeToString() for t in floor.graph.initializer)


def test_onnxruntime_leaves_no_product_of_the_floor_out(built: tuple[Path, list[Engine]], tmp_path: Path) -> None:
    root, emitted = built
    path = root / f"{emitted[0].id}-floor.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph
    assert len(optimized.node) == len(onnx.load(path, load_external_data=False).graph.node)


def test_equal_products_get_inputs_of_their_own(tmp_path: Path) -> None:
    with data_file(tmp_path, "constants.bin") as file:
        b = GraphBuilder("twice", {}, file)
        x = b.input("x", onnx.TensorProto.FLOAT, [3, 4])
        matrix = b.constant(np.ones((4, 4), np.float32), "matrix")
        folded = b.op("Add", matrix, matrix)
        chained = b.op("MatMul", b.op("MatMul", x, matrix), matrix)
        b.output("y", b.op("MatMul", chained, folded), onnx.TensorProto.FLOAT, [3, 4])
        floor, inputs, outputs = floor_model(b.model(), file)
    assert [port.shape for port in inputs] == [(3, 4), (3, 4)]  # the two by `matrix` differ, the one by `folded` may share
    assert len(outputs) == 3
    assert len(floor.graph.initializer) == 2  # `folded` follows from constants alone, so it is one


def test_a_product_counts_two_operations_a_multiply_add(tmp_path: Path) -> None:
    with data_file(tmp_path, "constants.bin") as file:
        b = GraphBuilder("one", {}, file)
        x = b.input("x", onnx.TensorProto.FLOAT, [7, 3])
        b.output("y", b.op("Gemm", x, b.constant(np.ones((5, 3), np.float32), "w"), transB=1), onnx.TensorProto.FLOAT, [7, 5])
        (product,) = products(b.model())
    assert product.flops == 2 * 7 * 3 * 5


def test_a_ratio_is_the_median_of_single_rounds_so_that_a_slow_phase_cancels() -> None:
    machine = np.array([1.0, 1.0, 5.0, 5.0, 5.0, 1.2])  # how slow the machine is, round by round
    found = ratio(list(30.0 * machine), list(10.0 * machine))
    assert (found.median, found.p25, found.p75) == pytest.approx((3.0, 3.0, 3.0))
    assert found.best == pytest.approx(3.0)


def test_rounds_in_which_one_sat_out_do_not_count() -> None:
    found = ratio([2.0, None, 9.0, 4.0], [1.0, 1.0, None, 1.0])
    assert (found.median, found.rounds) == (3.0, 2)
    assert summary([None, 3.0, 1.0]).count == 2
    with pytest.raises(ValueError, match="both"):
        ratio([None], [1.0])


def test_the_quartiles_are_those_of_the_ratios() -> None:
    found = ratio([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)
    assert (found.p25, found.median, found.p75) == (2.0, 3.0, 4.0)


def test_the_fastest_is_the_one_with_the_least_median() -> None:
    assert fastest({"a": [3.0, 1.0, 3.0], "b": [2.0, 2.0, 2.0], "c": [None, None, None]}) == "b"
    assert fastest({"c": [None]}) is None


class FakeProcess:
    """Answers turns with a fixed time."""

    def __init__(self, ms: float) -> None:
        self.ms, self.turns = ms, 0

    def ask(self, request: dict[str, int], seconds: float) -> dict[str, list[float]]:
        self.turns += 1
        return {"ms": [self.ms] * request["calls"]}


def player(name: str, ms: float) -> turns.Player:
    return turns.Player(Contender(name), FakeProcess(ms), {"threads": "2"}, 0.1)  # type: ignore[arg-type]


def test_a_peer_far_behind_sits_out_after_a_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PAUSE_SECONDS", 0.0)
    players = [player("ours", 1.0), player("near", 2.0), player("far", 9.0)]
    turns.play(players, ["near", "far"], turns.Pace(seconds=0.0, least=5, hopeless=2, beyond=1.5))
    assert players[2].rounds == [9.0, 9.0, None, None, None]
    assert players[1].rounds == [2.0] * 5
    assert players[0].rounds == [1.0] * 5


def test_short_calls_are_gathered_into_turns_and_long_ones_are_not_repeated() -> None:
    short, long = player("short", 0.5), player("long", 3000.0)
    assert (short.calibrate(), long.calibrate()) == (0.5, 3000.0)
    assert short.calls == 200  # 0.1 s; more would not tell more
    assert (long.calls, long.warmup) == (1, 0)
    assert long.process.turns == 1  # type: ignore[attr-defined]


def test_of_a_peers_spellings_the_fastest_is_kept_and_every_reason_too() -> None:
    fast, slow = player("fast", 1.0), player("slow", 2.0)
    closed = []
    slow.process.close = lambda: closed.append("slow")  # type: ignore[method-assign]
    opened = {"slow": slow, "fast": fast, "broken": "no such operator"}
    best = turns.keep_best([Contender(name) for name in opened], opened, lambda text: None)
    assert best is fast
    assert closed == ["slow"]
    assert best.tried == {"slow": 2.0, "fast": 1.0, "broken": "did not run: no such operator"}
    with pytest.raises(turns.DidNotRun, match="no such operator"):
        turns.keep_best([Contender("broken")], opened, lambda text: None)


def comparison() -> report.Comparison:
    one = report.Comparison("bytes", 8, others=0.25, absent={"OpenVINO": "no RDFT | at all"})
    for name, rounds in (("ours", [1.0, 1.0]), ("torch eager", [2.0, 4.0])):
        entry = player(name, 0.0)
        entry.rounds, entry.samples, entry.error = rounds, [[v] for v in rounds], 1e-7
        one.players.append(entry)
    one.add("torch eager / ours", "torch eager", "ours")
    one.add("nobody / ours", None, "ours")
    return one


def test_tables_have_one_column_a_budget_and_a_row_for_who_did_not_run() -> None:
    lines = report.ratio_table([comparison()]).splitlines()
    assert lines[0].endswith("| K=8 |")
    assert lines[2] == "| torch eager / ours | 3.00 (2.50 to 3.50; 2.00) |"
    assert lines[3] == "| CPU time taken by others meanwhile | **25%: disturbed** |"
    times = report.time_table(comparison())
    assert "| OpenVINO |  |  |  |  | did not run: no RDFT \\| at all |" in times
    assert "| ours | 1.00 | 1.00 to 1.00 | 2 | 1.0e-07 | threads 2 |" in times


def test_a_run_writes_json_with_every_sample_and_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = report.parser("A benchmark.").parse_args(["-o", str(tmp_path / "out"), "--quick"])
    run = report.Run("prefill", options)
    run.finish({"comparisons": [comparison().to_json()]}, ["a table"])
    document = json.loads((tmp_path / "out" / "prefill.json").read_text())
    assert document["comparisons"][0]["contenders"][1]["samples_ms"] == [[2.0], [4.0]]
    assert document["comparisons"][0]["did_not_run"] == {"OpenVINO": "no RDFT | at all"}
    assert {"machine", "versions", "threads", "command"} <= document.keys()
    assert (tmp_path / "out" / "prefill.md").read_text() == capsys.readouterr().out[:-1]


def test_ours_and_the_floor_take_turns_in_processes_of_their_own(
    built: tuple[Path, list[Engine]], language_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _ = built
    root.rename(tmp_path / f"{language_model.name}-k{BUDGET}")
    checkpoint = open_checkpoint(language_model)
    np.savez(tmp_path / f"{language_model.name}.npz", **inputs_of(checkpoint))
    monkeypatch.setattr(match, "prepare_all", lambda *_: {})
    options = argparse.Namespace(output=None, quick=True, threads=1, wait=0.0)
    groups = {
        "ours": [Contender(OURS, "sequence")],
        "floor": [Contender(FLOOR, "sequence")],
        "step": [Contender(OURS, "push")],
        "nobody": [Contender("torch eager", "no such spelling")],
    }
    setting = Setting(language_model, BUDGET, 1, tmp_path)
    pace = turns.Pace(seconds=0.0, least=2, most=2)
    found = match.compare(report.Run("prefill", options), setting, groups, pace, (), lambda c: None)
    assert [len(p.rounds) for p in found.players] == [2, 2, 2]
    errors = {p.name: p.error for p in found.players}
    assert errors["floor sequence"] is None
    assert errors["ours sequence"] is not None
    assert errors["ours sequence"] < 2e-6  # float32 rounding of two small layers
    assert errors["ours push"] is not None
    assert errors["ours push"] < 2e-6
    assert list(found.absent) == ["nobody"]


def test_other_processes_work_is_told_from_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = machine.Watch(total=1000, busy=400, own=300), machine.Watch(total=1200, busy=560, own=420)
    monkeypatch.setattr(machine.Watch, "start", classmethod(lambda cls, pids=(): after))
    assert before.others() == pytest.approx(0.2)  # 160 ticks of work, 120 of them ours, out of 200


def test_every_candidate_has_something_to_open_it_with(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "bytes", 8, 2, tmp_path)
    for groups in GROUPS.values():
        for contender in (c for group in groups.values() for c in group):
            assert contender.peer in (OURS, FLOOR, ELSEWHERE, *PEERS)
            task = preparation(contender, setting)
            assert (task is None) == contender.peer.startswith("torch")


def test_the_error_is_relative_in_the_2_norm() -> None:
    assert relative_error(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == pytest.approx(0.1)
