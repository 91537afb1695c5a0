"""The shipped spotter, compiled: on speakers that it never heard, it is right as often as its card says."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from essm_deploy import compile, runtime
from essm_deploy.compile import Request
from essm_deploy.frontend import read_audio
from essm_deploy.profiling.measure import Settings

QUICK = Settings(min_samples=60, min_seconds=0.05, warmup_seconds=0.2)

pytestmark = pytest.mark.needs_data


@pytest.fixture(scope="module", params=[4, 32], ids="K={}".format)
def bundle(request: pytest.FixtureRequest, shipped: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    out = tmp_path_factory.mktemp("bundle") / "keywords"
    compile.build(Request(shipped, "cpu", budgets=(request.param,), settings=QUICK), out, lambda line: None)
    return request.param, out


def held_out_clips(data_dir: Path) -> list[tuple[str, Path]]:
    """Word and file of every clip of the test split."""
    folder = data_dir / "speech_commands_10"
    with (folder / "split.tsv").open() as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["split"] == "test"]
    return [(row["keyword"], (folder / row["keyword"] / row["clip"]).with_suffix(".flac")) for row in rows]


def test_the_engine_is_as_accurate_as_the_card_says(bundle: tuple[int, Path], shipped: Path, data_dir: Path) -> None:
    budget, out = bundle
    model, clips = runtime.load(out), held_out_clips(data_dir)
    right = sum(model.classify(read_audio(clip, 16000))[0]["label"] == word for word, clip in clips)
    promised = json.loads((shipped / "quality.json").read_text())["budgets"][str(budget)]
    assert len(clips) == 485
    # One clip on the boundary may fall to either side of fp32 rounding.
    assert abs(right - promised * len(clips)) <= 1.0


def test_the_command_line_names_the_same_words(bundle: tuple[int, Path], data_dir: Path) -> None:
    _, out = bundle
    model = runtime.load(out)
    for _, clip in held_out_clips(data_dir)[::120]:
        command = [sys.executable, "-m", "essm_deploy.cli", "run", str(out), str(clip), "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        labels = json.loads(done.stdout)["labels"]
        assert labels[0]["label"] == model.classify(read_audio(clip, 16000))[0]["label"]
        assert [entry["score"] for entry in labels] == sorted((entry["score"] for entry in labels), reverse=True)


def test_a_stream_of_frames_hears_the_same_words(bundle: tuple[int, Path], data_dir: Path) -> None:
    _, out = bundle
    model = runtime.load(out)
    assert model.frontend is not None
    for _, clip in held_out_clips(data_dir)[::60]:
        waveform = read_audio(clip, 16000)
        features, length = model.frontend(waveform)
        with model.stream() as stream:
            for start in range(0, length, 10):
                stream.push(features[start : min(start + 10, length)])
            heard = stream.scores()[0]
        assert heard[0]["label"] == model.classify(waveform)[0]["label"]
