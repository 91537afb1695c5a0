"""`essm-deploy run`: text on stdout as it comes, one line on stderr; clips at once or hop by hop; what does not go together."""

from __future__ import annotations

import json
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essm_deploy import runtime
from tests.cli.test_cli import run
from tests.runtime.streams import LABELS, Tiny, write_stream_bundle

FRONTEND = {"type": "log_mel", "n_mels": 3, "frames": 20, "clip_samples": 3200}
DOCUMENT = {
    "schema_version",
    "prompt",
    "text",
    "budget",
    "prompt_bytes",
    "new_bytes",
    "bytes_per_s",
    "bits_per_byte",
    "stopped",
    "seed",
}


@pytest.fixture(scope="module")
def text_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stream_bundle(tmp_path_factory.mktemp("text") / "bundle", Tiny(vocab=258, length=16, chunks=(1, 8)))


@pytest.fixture(scope="module")
def clip_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stream_bundle(tmp_path_factory.mktemp("clip") / "bundle", Tiny(classifier=True), frontend=FRONTEND)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """0.3125 s: 31.25 hops, longer than the model's own clip."""
    path = tmp_path / "clip.wav"
    samples = (3000 * np.random.default_rng(0).standard_normal(5000)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return path


def test_text_is_what_the_runtime_generates(text_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with runtime.load(text_bundle, budget=2).stream() as stream:
        wanted = b"".join(runtime.generate(stream, "Fluß".encode(), 40, seed=7, top_k=9, temperature=0.8))
    arguments = ["--prompt", "Fluß", "--max-new-bytes", 40, "--seed", 7, "--top-k", 9, "--temperature", 0.8, "--budget", 2]
    code, out, err = run(capsys, "run", text_bundle, *arguments)
    assert (code, out) == (0, wanted.decode("utf-8", errors="replace") + "\n")
    assert err.startswith("k2: prompt 5 bytes at ")
    assert err.endswith("stopped by length\n")
    assert err.count("\n") == 1
    code, out, err = run(capsys, "run", text_bundle, *arguments, "--format", "json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document.keys() == DOCUMENT
    assert (document["prompt"], document["text"]) == ("Fluß", wanted.decode("utf-8", errors="replace"))
    assert (document["budget"], document["prompt_bytes"], document["new_bytes"]) == ("k2", 5, 40)
    assert (document["stopped"], document["seed"]) == ("length", 7)
    assert document["bytes_per_s"]["prefill"] > 0
    assert document["bytes_per_s"]["decode"] > 0
    assert document["bits_per_byte"]["prompt"] > 0
    assert document["bits_per_byte"]["generated"] > 0


def test_an_empty_prompt_and_a_stop_text(text_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "run", text_bundle, "--prompt", "", "--temperature", 0, "--format", "json")
    document = json.loads(out)
    assert (code, document["new_bytes"], document["prompt_bytes"]) == (0, 256, 0)
    assert document["bytes_per_s"]["prefill"] is None
    with runtime.load(text_bundle).stream() as stream:
        text = b"".join(runtime.generate(stream, b"x", 60, seed=1)).decode("ascii", errors="ignore")
    stop = text[5:7]
    out = run(capsys, "run", text_bundle, "--prompt", "x", "--seed", 1, "--stop", stop, "--format", "json")[1]
    assert json.loads(out)["stopped"] == "stop"
    assert stop not in json.loads(out)["text"]


def test_a_prompt_need_not_be_utf8(text_bundle: Path) -> None:
    command = [sys.executable, "-m", "essm_deploy.cli", "run", str(text_bundle), "--prompt", b"\xff\xfe", "--format", "json"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert json.loads(done.stdout)["prompt_bytes"] == 2, done.stderr


def test_a_clip_is_labelled_by_a_stream_engine_too(
    clip_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "short.npy", 0.1 * np.random.default_rng(1).standard_normal(900).astype(np.float32))
    code, out, _ = run(capsys, "run", clip_bundle, tmp_path / "short.npy", "--format", "json")
    document = json.loads(out)
    assert (code, document["engine"], {entry["label"] for entry in document["labels"]}) == (0, "k8-stream-1", set(LABELS))


@pytest.mark.parametrize(("options", "hop", "frames"), [([], 1, [*range(1, 33)]), (["--hop", 10], 10, [10, 20, 30, 32])])
def test_a_clip_is_answered_hop_by_hop(
    clip_bundle: Path, clip: Path, capsys: pytest.CaptureFixture[str], options: list[Any], hop: int, frames: list[int]
) -> None:
    code, out, err = run(capsys, "run", clip_bundle, clip, "--stream", *options, "--top", 2, "--format", "json")
    document = json.loads(out)
    assert (code, err, document["hop_frames"]) == (0, "", hop)
    assert [answer["frame"] for answer in document["answers"]] == frames
    assert document["answers"][-1]["seconds"] == pytest.approx(0.32)
    assert all(len(answer["labels"]) == 2 for answer in document["answers"])
    code, out, _ = run(capsys, "run", clip_bundle, clip, "--stream", *options)
    assert code == 0
    assert len(out.splitlines()) == len(frames)
    assert out.splitlines()[-1].startswith("   0.32 s  ")


def test_the_hop_does_not_change_the_answer(clip_bundle: Path, clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = []
    for hop in (1, 7, 32):
        out = run(capsys, "run", clip_bundle, clip, "--stream", "--hop", hop, "--format", "json")[1]
        last.append(json.loads(out)["answers"][-1]["labels"])
    for labels in last[1:]:
        assert [entry["label"] for entry in labels] == [entry["label"] for entry in last[0]]
        assert labels[0]["score"] == pytest.approx(last[0][0]["score"], abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "arguments", "code", "said"),
    [
        ("text", ["clip.wav"], 2, "no audio front end"),
        ("clip", ["--prompt", "x"], 2, "give a CLIP instead of --prompt"),
        ("clip", [], 2, "give a CLIP to label, or --prompt"),
        ("text", ["clip.wav", "--prompt", "x"], 2, "give a CLIP to label, or --prompt"),
        ("text", ["--prompt", "x", "--max-new-bytes", 0], 2, "--max-new-bytes"),
        ("text", ["--prompt", "x", "--max-new-bytes", -4], 2, "--max-new-bytes"),
        ("text", ["--prompt", "x", "--temperature", "nan"], 2, "--temperature"),
        ("text", ["--prompt", "x", "--temperature", "-1"], 2, "--temperature"),
        ("text", ["--prompt", "x", "--top-p", 0], 2, "--top-p"),
        ("text", ["--prompt", "x", "--seed", -1], 2, "--seed"),
        ("text", ["--prompt", "x", "--stop", ""], 2, "stop text is empty"),
        ("text", ["--prompt", "x", "--budget", 3], 2, "no budget 3"),
        ("text", ["--prompt", "x", "--top", 3], 2, "--top does not go with --prompt"),
        ("text", ["--prompt", "x", "--stream"], 2, "--stream does not go with --prompt"),
        ("clip", ["clip.wav", "--seed", 0], 2, "--seed does not go with CLIP"),
        ("clip", ["clip.wav", "--hop", 2], 2, "--hop goes with --stream"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    text_bundle: Path,
    clip_bundle: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    arguments: list[Any],
    code: int,
    said: str,
) -> None:
    got, out, err = run(capsys, "run", text_bundle if kind == "text" else clip_bundle, *arguments)
    assert (got, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_prompt_outside_the_vocabulary_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_stream_bundle(tmp_path / "bundle", Tiny(vocab=130))
    code, out, err = run(capsys, "run", root, "--prompt", "Fluß")
    assert (code, out) == (2, "")
    assert "byte 0xc3 at 3" in err


def test_a_model_that_refuses_more_than_its_length_says_so_before_the_first_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_stream_bundle(tmp_path / "bundle", Tiny(vocab=258, overflow="refuse"))
    assert run(capsys, "run", root, "--prompt", "x", "--max-new-bytes", 7)[0] == 0
    code, out, err = run(capsys, "run", root, "--prompt", "x", "--max-new-bytes", 8)
    assert (code, out) == (2, "")
    assert "the stream ends at 8" in err


def test_streaming_a_bundle_without_stream_engines_is_one_line(
    keywords: Path, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_stream_bundle(tmp_path / "bundle", Tiny(classifier=True), frontend=FRONTEND)
    document = json.loads((root / "manifest.json").read_text())
    document["engines"] = [entry | {"kind": "sequence", "chunk": None, "stream": None} for entry in document["engines"]]
    (root / "manifest.json").write_text(json.dumps(document))
    code, _, err = run(capsys, "run", root, clip, "--stream")
    assert code == 2
    assert "no stream engine" in err
