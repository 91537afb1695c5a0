"""A data set in Speech Commands' layout whose words are sine tones: small, learnable, made in a moment."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from essm_train.tasks.speech_commands import WORDS

PER_WORD = {"train": 4, "val": 1, "test": 1}


def write_wav(path: Path, samples: np.ndarray, rate: int = 16000) -> None:
    """A mono 16-bit wav."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as clip:
        clip.setnchannels(1)
        clip.setsampwidth(2)
        clip.setframerate(rate)
        clip.writeframes((samples * 32767).astype("<i2").tobytes())


def tone(word: int, speaker: int, samples: int = 16000) -> np.ndarray:
    """A harmonic tone, whose pitch is the word and whose phase is the speaker."""
    t = np.arange(samples) / 16000
    return 0.3 * np.sin(2 * np.pi * 200 * 1.35**word * t + speaker)


def make_data_set(root: Path) -> Path:
    """`root` filled with clips of every word and their split.tsv; one clip in each split is shorter than a second."""
    rows = ["keyword\tclip\tsplit"]
    for index, word in enumerate(WORDS):
        speaker = 0
        for split, count in PER_WORD.items():
            for _ in range(count):
                clip = f"{speaker:08x}_nohash_0"
                write_wav(root / word / f"{clip}.wav", tone(index, speaker, 12000 if index == 3 else 16000))
                rows.append(f"{word}\t{clip}\t{split}")
                speaker += 1
    (root / "split.tsv").write_text("\n".join(rows) + "\n")
    return root
