from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essm_deploy.errors import InputError, WorkerError
from essm_deploy.profiling.remote import run_engine
from essm_deploy.runtime import load, read_manifest, stream_outputs
from essm_deploy.runtime.channel import MAX_RUN_LINE
from essm_deploy.runtime.manifest import Engine
from essm_deploy.runtime.wire import encode_arrays
from essm_deploy.targets.local import LocalLauncher
from tests.profiling.scripted import Scripted
from tests.runtime.streams import Tiny, write_stream_bundle
from tests.runtime.tiny import LENGTH, WIDTH, engine_entry, expected

ENGINE = Engine.from_json(engine_entry("k8"))
FEATURES = np.random.default_rng(0).standard_normal((5, LENGTH, WIDTH)).astype(np.float32)
LENGTHS = np.array([6, 1, 3, 6, 2])
LOGITS = np.arange(10, dtype=np.float32).reshape(5, 2)


def test_a_fresh_worker_computes_what_this_process_would(bundle: Path) -> None:
    outputs = run_engine(LocalLauncher(), bundle, ENGINE, {"features": FEATURES, "lengths": LENGTHS}, threads=1)
    here = load(bundle, budget=8, threads=1).run(features=FEATURES, lengths=LENGTHS)["logits"]
    np.testing.assert_array_equal(outputs["logits"], here)
    np.testing.assert_allclose(outputs["logits"], expected(FEATURES, LENGTHS), rtol=1e-6, atol=1e-6)  # one fp32 product


def test_an_engine_of_a_fixed_batch_takes_the_rows_in_pieces(tmp_path: Path) -> None:
    from tests.runtime.tiny import write_graph

    (tmp_path / "graphs").mkdir()
    write_graph(tmp_path / "graphs" / "k8.onnx", batch=1)
    engine = Engine.from_json(engine_entry("k8", batch=1))
    outputs = run_engine(LocalLauncher(), tmp_path, engine, {"features": FEATURES, "lengths": LENGTHS}, threads=1)
    np.testing.assert_allclose(outputs["logits"], expected(FEATURES, LENGTHS), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tiny", [Tiny(), Tiny(classifier=True)], ids=["language model", "classifier"])
def test_a_stream_engine_is_played_from_an_empty_state_for_every_row(tmp_path: Path, tiny: Tiny) -> None:
    root = write_stream_bundle(tmp_path / "streaming", tiny)
    manifest = read_manifest(root)
    engine = manifest.engine("k8-stream-4")
    info = next(info for info in engine.inputs if info.name in ("tokens", "features"))
    rng = np.random.default_rng(1)
    shape = (2, 8, *(int(size) for size in info.shape[2:]))
    data = rng.integers(0, info.maximum or 1, shape) if info.name == "tokens" else rng.standard_normal(shape).astype(np.float32)
    outputs = run_engine(LocalLauncher(), root, engine, {info.name: data}, threads=1)["logits"]
    here = np.concatenate([stream_outputs(root, manifest, 8, 4, row[None], threads=1, max_length=8) for row in data])
    np.testing.assert_array_equal(outputs, here[:, -1] if tiny.classifier else here)


def test_the_workers_own_error_is_raised_here(bundle: Path) -> None:
    with pytest.raises(InputError, match="lengths"):
        run_engine(LocalLauncher(), bundle, ENGINE, {"features": FEATURES, "lengths": LENGTHS + 9})


def test_inputs_beyond_a_line_are_refused_before_they_are_sent(bundle: Path) -> None:
    large = np.zeros((MAX_RUN_LINE, 1), np.uint8)
    with pytest.raises(WorkerError, match=f"more than the {MAX_RUN_LINE}"):
        run_engine(LocalLauncher(), bundle, ENGINE, {"features": large})


def answer(**changes: Any) -> dict[str, Any]:
    entry = encode_arrays({"logits": LOGITS})["logits"] | changes
    return {"logits": {name: value for name, value in entry.items() if value is not None}}


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (None, "no 'arrays'"),
        ([1], "an object"),
        ({}, "expected logits"),
        ({**answer(), "more": answer()["logits"]}, "expected logits"),
        (answer(dtype="float64"), "bytes of data"),
        (answer(dtype="object"), "one of float16"),
        (answer(dtype="int32"), "'logits' as int32"),
        (answer(shape=[2, 5]), r"the engine declares float32 \[batch, 2\]"),
        (answer(shape=[10]), "declares"),
        (answer(shape=[-5, -2]), "sizes"),
        (answer(shape=[10**30]), "sizes"),
        (answer(shape=[1] * 60), "at most 8 sizes"),
        (answer(data="?" * 56), "not base64"),
        (answer(data=7), "base64"),
        (answer(data=None), "has no 'data'"),
        (answer(surprise=1), "unknown key"),
    ],
)
def test_garbage_in_place_of_outputs_is_one_line(outputs: Any, said: str) -> None:
    program = f"send('hello'); sys.stdin.readline(); send('loaded'); send('outputs', outputs={outputs!r}); send('done')"
    with pytest.raises(WorkerError, match=said) as caught:
        run_engine(Scripted(program), Path(), ENGINE, {"features": FEATURES, "lengths": LENGTHS})
    assert "\n" not in str(caught.value)


def test_a_worker_that_never_reads_its_request_is_given_up() -> None:
    launcher = Scripted("send('hello'); time.sleep(60)")
    inputs = {"features": np.zeros((200_000, LENGTH), np.float32)}
    with pytest.raises(WorkerError, match="did not read its request within"):
        run_engine(launcher, Path(), ENGINE, inputs, run_seconds=0.5)
    assert launcher.started[0].poll() is not None


def test_an_answer_may_be_as_long_as_a_line_and_no_longer() -> None:
    program = f"send('hello'); sys.stdin.readline(); send('loaded'); print('x' * {MAX_RUN_LINE + 1})"
    with pytest.raises(WorkerError, match="longer than"):
        run_engine(Scripted(program), Path(), ENGINE, {"features": FEATURES})
    rows = 200_000  # 2 MB of base64: more than a line of any other message
    long = {"logits": {"dtype": "float32", "shape": [rows, 2], "data": None}}
    program = f"""
        send('hello'); sys.stdin.readline(); send('loaded')
        import base64; outputs = {json.dumps(long).replace("null", "None")}
        outputs['logits']['data'] = base64.b64encode(bytes({rows} * 8)).decode()
        send('outputs', outputs=outputs); send('done')
    """
    outputs = run_engine(Scripted(program), Path(), ENGINE, {"features": np.zeros((rows, 1), np.uint8)})
    assert outputs["logits"].shape == (rows, 2)
