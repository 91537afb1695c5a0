"""The loader takes the public data set's own layout, and says in one line what else it found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from essm_deploy.errors import InputError, UsageError
from essm_deploy.frontend import LogMel
from essm_train.tasks.speech_commands import WORDS, load_clips
from tests.train.synthetic import PER_WORD, tone, write_wav

CLIP = "00000000_nohash_0"  # speaker 0 of the synthetic set is in the training split


@pytest.fixture
def copy(tones: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tones, tmp_path / "data"))


def as_archive(root: Path) -> None:
    """Replace split.tsv by the two lists of the original archive, and add what the archive has besides."""
    rows = [line.split("\t") for line in (root / "split.tsv").read_text().splitlines()[1:]]
    for split, name in (("val", "validation_list.txt"), ("test", "testing_list.txt")):
        listed = [f"{word}/{clip}.wav" for word, clip, where in rows if where == split]
        (root / name).write_text("\n".join([*listed, "bed/00000001_nohash_0.wav"]) + "\n")
    (root / "split.tsv").unlink()
    write_wav(root / "bed" / "00000001_nohash_0.wav", tone(0, 0))
    write_wav(root / "_background_noise_" / "pink_noise.wav", np.zeros(200_000))


def test_both_layouts_give_the_same_clips(copy: Path) -> None:
    from_table = load_clips(copy, LogMel())
    as_archive(copy)
    from_lists = load_clips(copy, LogMel())
    for split, count in PER_WORD.items():
        assert len(from_table[split]) == count * len(WORDS)
        assert from_lists[split].names == from_table[split].names
        np.testing.assert_array_equal(from_lists[split].waveforms, from_table[split].waveforms)


def test_short_clips_are_padded_and_their_length_is_kept(tones: Path) -> None:
    clips = load_clips(tones, LogMel())["train"]
    row = next(i for i, n in enumerate(clips.lengths) if n < 16000)
    assert clips.lengths[row] == 12000
    assert clips.waveforms[row, :12000].any()
    assert not clips.waveforms[row, 12000:].any()
    assert WORDS[clips.labels[row]] == clips.names[row].split("/")[0]


def without_lists(root: Path) -> None:
    (root / "split.tsv").unlink()


def with_other_columns(root: Path) -> None:
    (root / "split.tsv").write_text("word,file\nyes,a\n")


def with_an_unknown_split(root: Path) -> None:
    (root / "split.tsv").write_text(f"keyword\tclip\tsplit\nyes\t{CLIP}\tdev\n")


def without_a_listed_clip(root: Path) -> None:
    (root / "yes" / f"{CLIP}.wav").unlink()


def with_a_path_in_the_list(root: Path) -> None:
    write_wav(root / "no" / "x.wav", tone(0, 0))
    (root / "split.tsv").write_text("keyword\tclip\tsplit\nyes\t../no/x\ttrain\nyes\t../no/x\tval\nyes\t../no/x\ttest\n")


def without_test_clips(root: Path) -> None:
    (root / "split.tsv").write_text(f"keyword\tclip\tsplit\nyes\t{CLIP}\ttrain\nyes\t{CLIP}\tval\n")


def at_another_rate(root: Path) -> None:
    write_wav(root / "yes" / f"{CLIP}.wav", tone(0, 0), rate=8000)


def too_long(root: Path) -> None:
    write_wav(root / "yes" / f"{CLIP}.wav", tone(0, 0, 16001))


def empty(root: Path) -> None:
    write_wav(root / "yes" / f"{CLIP}.wav", np.zeros(0))


def garbled(root: Path) -> None:
    (root / "yes" / f"{CLIP}.wav").write_bytes(b"not audio")


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (shutil.rmtree, UsageError, "no such directory"),
        (without_lists, UsageError, "neither split.tsv nor the two lists"),
        (with_other_columns, UsageError, "columns .* expected keyword, clip and split"),
        (with_an_unknown_split, UsageError, "in split 'dev'; expected train, val, test"),
        (without_a_listed_clip, UsageError, "listed in the split, but neither"),
        (with_a_path_in_the_list, UsageError, "listed in the split, but neither"),
        (without_test_clips, UsageError, "is in split 'test'"),
        (at_another_rate, InputError, "sampled at 8000 Hz; expected 16000 Hz"),
        (too_long, InputError, "16001 samples; expected at most 16000"),
        (empty, InputError, "holds no samples"),
        (garbled, InputError, "neither wav, flac nor npy"),
    ],
)
def test_a_wrong_data_set_is_one_line_that_names_the_place(
    copy: Path, damage: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    damage(copy)
    with pytest.raises(error, match=message) as caught:
        load_clips(copy, LogMel())
    assert str(copy) in str(caught.value)
    assert "\n" not in str(caught.value)
