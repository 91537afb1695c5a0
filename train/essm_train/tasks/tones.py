"""A data set in Speech Commands' layout whose words are sine tones, for smoke runs and tests: small and made in a moment."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt

from essm_train.tasks.speech_commands import WORDS

PER_WORD = {"train": 4, "val": 1, "test": 1}
RATE = 16000


def write_tones(root: Path) -> Path:
    """`root` filled with clips of every word and their split.tsv; the clips of one word are shorter than a second."""
    rows = ["keyword\tclip\tsplit"]
    for index, word in enumerate(WORDS):
        splits = [split for split, count in PER_WORD.items() for _ in range(count)]
        for speaker, split in enumerate(splits):
            clip = f"{speaker:08x}_nohash_0"
            write_wav(root / word / f"{clip}.wav", tone(index, speaker, 12000 if index == 3 else RATE))
            rows.append(f"{word}\t{clip}\t{split}")
    (root / "split.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return root


def tone(word: int, speaker: int, samples: int = RATE) -> npt.NDArray[np.float64]:
    """A sine whose pitch is the word and whose phase is the speaker."""
    t = np.arange(samples) / RATE
    wave_form: npt.NDArray[np.float64] = 0.3 * np.sin(2 * np.pi * 200 * 1.35**word * t + speaker)
    return wave_form


def write_wav(path: Path, samples: npt.NDArray[np.float64], rate: int = RATE) -> None:
    """A mono 16-bit wav."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as clip:
        clip.setnchannels(1)
        clip.setsampwidth(2)
        clip.setframerate(rate)
        clip.writeframes((samples * 32767).astype("<i2").tobytes())
