"""The examples are short, and do what they say."""

from __future__ import annotations

import json
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from essm_deploy import compile
from essm_deploy.compile import Request
from essm_deploy.profiling.measure import Settings

ROOT = Path(__file__).parent.parent
APP = ROOT / "examples" / "keyword_app" / "app.py"
QUICK = Settings(min_samples=60, min_seconds=0.05, warmup_seconds=0.2)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundle") / "keywords"
    shipped = ROOT / "examples" / "checkpoints" / "keywords"
    compile.build(Request(shipped, "cpu", budgets=(4,), settings=QUICK), out, lambda line: None)
    return out


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(APP), *args], capture_output=True, text=True, timeout=60, check=False)


def write_wav(path: Path, rate: int = 16000) -> None:
    samples = (3000 * np.sin(np.arange(rate) * 0.05)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())


def test_the_keyword_app_is_at_most_forty_lines() -> None:
    assert len(APP.read_text().splitlines()) <= 40


def test_the_keyword_app_labels_clips(bundle: Path, tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav")
    done = run(str(bundle), str(tmp_path / "a.wav"), str(tmp_path / "a.wav"))
    assert done.returncode == 0, done.stderr
    first, second = (line.split("\t") for line in done.stdout.splitlines())
    assert first == second
    assert 0.1 <= float(first[2]) <= 1


def test_the_keyword_app_says_what_is_wrong_with_a_clip(bundle: Path, tmp_path: Path) -> None:
    write_wav(tmp_path / "slow.wav", rate=8000)
    done = run(str(bundle), str(tmp_path / "slow.wav"))
    assert done.returncode != 0
    assert "8000" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.needs_data
def test_the_keyword_app_hears_real_words(bundle: Path, data_dir: Path) -> None:
    clips = [next((data_dir / "speech_commands_10" / word).glob("*.flac")) for word in ("yes", "stop", "left")]
    done = run(str(bundle), *map(str, clips))
    words = [line.split("\t")[1] for line in done.stdout.splitlines()]
    assert sum(word == clip.parent.name for word, clip in zip(words, clips, strict=True)) >= 2


def test_the_command_line_reads_a_clip_from_standard_input(bundle: Path, tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav")
    command = [sys.executable, "-m", "essm_deploy.cli", "run", str(bundle), "-", "--format", "json"]
    done = subprocess.run(command, input=(tmp_path / "a.wav").read_bytes(), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    labels = json.loads(done.stdout)["labels"]
    assert [entry["label"] for entry in labels] == [
        line.split()[0]
        for line in subprocess.run(
            [sys.executable, "-m", "essm_deploy.cli", "run", str(bundle), str(tmp_path / "a.wav")],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.splitlines()[1:]
    ]
