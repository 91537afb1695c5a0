"""Speech Commands v0.02 in its own layout: `<word>/<speaker>_nohash_<n>.wav` (or .flac), ten of its words.

The split is read from `split.tsv` (columns keyword, clip, split), or from the archive's own `validation_list.txt` and
`testing_list.txt`, whose unlisted clips are for training. Both keep every speaker within one split.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from essm_deploy.errors import InputError, UsageError
from essm_deploy.frontend import LogMel, read_audio

WORDS = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
SPLITS = ("train", "val", "test")
LAYOUT = "expected <word>/<speaker>_nohash_<n>.wav with split.tsv, or with validation_list.txt and testing_list.txt"


@dataclass(frozen=True)
class Clips:
    """waveforms int16 [N, clip_samples], zero-padded; lengths [N] in samples; labels [N] index WORDS; names `<word>/<clip>`."""

    waveforms: npt.NDArray[np.int16]
    lengths: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)

    def floats(self, rows: npt.NDArray[np.int64] | slice) -> npt.NDArray[np.float32]:
        """Waveforms of some rows as float32 in [-1, 1)."""
        floats: npt.NDArray[np.float32] = self.waveforms[rows].astype(np.float32) / np.float32(32768.0)
        return floats


def load_clips(data_dir: Path, frontend: LogMel, splits: tuple[str, ...] = SPLITS) -> dict[str, Clips]:
    """Read the clips of the wanted splits. UsageError or InputError, one line, for a wrong layout, rate or length."""
    if not data_dir.is_dir():
        raise UsageError(f"{data_dir}: no such directory; {LAYOUT}")
    listed = read_split(data_dir)
    found = {split: [(word, clip) for word, clip, where in listed if where == split] for split in splits}
    empty = [split for split in splits if not found[split]]
    if empty:
        raise UsageError(f"{data_dir}: no clip of {', '.join(WORDS)} is in split {empty[0]!r}; {LAYOUT}")
    return {split: _read_clips(data_dir, found[split], frontend) for split in splits}


def read_split(data_dir: Path) -> list[tuple[str, str, str]]:
    """(word, clip without extension, split) of every clip of the ten words, in a fixed order."""
    if (data_dir / "split.tsv").is_file():
        return _from_tsv(data_dir / "split.tsv")
    if (data_dir / "testing_list.txt").is_file() and (data_dir / "validation_list.txt").is_file():
        return _from_lists(data_dir)
    raise UsageError(f"{data_dir}: holds neither split.tsv nor the two lists of the archive; {LAYOUT}")


def _from_tsv(path: Path) -> list[tuple[str, str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream, delimiter="\t")
        if not {"keyword", "clip", "split"} <= set(reader.fieldnames or ()):
            raise UsageError(f"{path}: columns {reader.fieldnames}; expected keyword, clip and split, tab-separated")
        rows = [(row["keyword"], row["clip"], row["split"]) for row in reader]
    wrong = next((row for row in rows if row[2] not in SPLITS), None)
    if wrong:
        raise UsageError(f"{path}: clip {wrong[1]!r} is in split {wrong[2]!r}; expected {', '.join(SPLITS)}")
    return [row for row in rows if row[0] in WORDS]


def _from_lists(data_dir: Path) -> list[tuple[str, str, str]]:
    held_out = {}
    for split, name in (("val", "validation_list.txt"), ("test", "testing_list.txt")):
        for line in (data_dir / name).read_text("utf-8").split():
            held_out[line.rsplit(".", 1)[0]] = split
    clips = [(word, path.stem) for word in WORDS for path in sorted((data_dir / word).glob("*_nohash_*.*"))]
    return [(word, clip, held_out.get(f"{word}/{clip}", "train")) for word, clip in clips]


def _read_clips(data_dir: Path, listed: list[tuple[str, str]], frontend: LogMel) -> Clips:
    waveforms = np.zeros((len(listed), frontend.clip_samples), np.int16)
    lengths = np.zeros(len(listed), np.int64)
    for row, (word, clip) in enumerate(listed):
        path = _locate(data_dir / word, clip)
        samples = read_audio(path, frontend.sample_rate)
        if len(samples) > frontend.clip_samples:
            raise InputError(
                f"{path}: {len(samples)} samples; expected at most {frontend.clip_samples}: cut it or leave it out"
            )
        waveforms[row, : len(samples)] = np.clip(np.rint(samples * 32768.0), -32768, 32767).astype(np.int16)
        lengths[row] = len(samples)
    labels = np.array([WORDS.index(word) for word, _ in listed], np.int64)
    return Clips(waveforms, lengths, labels, [f"{word}/{clip}" for word, clip in listed])


def _locate(folder: Path, clip: str) -> Path:
    """The clip's file; a name that would leave the folder is refused."""
    if Path(clip).name == clip:
        for suffix in (".wav", ".flac"):
            if (folder / (clip + suffix)).is_file():
                return folder / (clip + suffix)
    raise UsageError(f"{folder / clip}: listed in the split, but neither .wav nor .flac is there; {LAYOUT}")
