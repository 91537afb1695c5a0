"""Text of Long Range Arena: whether a film review is favourable, from its bytes.

Data: aclImdb (train/pos/*.txt, train/neg, test/pos, test/neg; Maas et al. 2011), or the folder that holds it. A tenth of
the training films, chosen by the films' addresses in urls_pos.txt and urls_neg.txt where they are there (by file
otherwise), is the validation split, so that no film is in two splits; Long Range Arena itself looked at the test split. Or
movie_reviews.zip, polarity 2.0 of Pang and Lee 2004 (movie_reviews/pos/cv000_*.txt): folds 0 to 7 of its ten are for
training, 8 and 9 held out.

Run on movie_reviews.zip. aclImdb could not be reached: its loader was run on made-up files in its layout only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from essm_deploy.errors import InputError, UsageError
from essm_train.settings import CommonSettings
from essm_train.tasks.classification import SPLITS, Classification, Labelled, check_positive, smaller, token_config
from essm_train.tasks.examples import TokenRows, pack
from essm_train.tasks.reading import Archive, fraction, read_file, read_text_file
from essm_train.tasks.text import OFFSET, VOCAB_SIZE

LABELS = ("negative", "positive")
FOLDERS = ("neg", "pos")
LAYOUT = "expected aclImdb with {train,test}/{pos,neg}/*.txt, or movie_reviews.zip"
MAX_REVIEW = 2**20  # bytes
VALIDATION = 0.1  # of the training films


@dataclass(frozen=True)
class Data:
    seq_len: int
    val_samples: int


@dataclass(frozen=True)
class Recipe(CommonSettings):
    data: Data


Review = tuple[str, int, bytes]  # split, label, text


def build(recipe: Recipe, data: Path, device: torch.device) -> Classification:
    """The task on these reviews."""
    config = token_config(recipe, recipe.data.seq_len, VOCAB_SIZE, len(LABELS))
    return Classification("text", load(data, recipe.data.seq_len), config, recipe, device, recipe.data.val_samples)


def check(recipe: Recipe) -> None:
    """UsageError where a length makes no sense."""
    check_positive(recipe, "seq_len")


def smoke(recipe: Recipe) -> Recipe:
    """Short sequences."""
    small: Recipe = smaller(recipe, seq_len=64)
    return small


def smoke_data(folder: Path) -> Path:
    """Forty reviews of a sentence in aclImdb's layout."""
    for split in ("train", "test"):
        for name, word in zip(FOLDERS, ("dull", "fine"), strict=True):
            (folder / "aclImdb" / split / name).mkdir(parents=True)
            for i in range(10):
                (folder / "aclImdb" / split / name / f"{i}_5.txt").write_text(f"{split} {i}: a {word} film, <br />all in all.")
    return folder


def load(path: Path, seq_len: int) -> Labelled:
    """Reviews cut to their first seq_len bytes."""
    if path.is_file():
        reviews, source = _from_archive(path), "Polarity 2.0 (Pang and Lee 2004, CC BY 4.0), split by the folds of its authors."
    else:
        root = path / "aclImdb" if (path / "aclImdb").is_dir() else path
        reviews, source = _from_folders(root), "Large Movie Review Dataset (Maas et al. 2011); no film is in two splits."
    return Labelled(_packed(reviews, seq_len), LABELS, source, {"preprocessing": {"kind": "bytes", "offset": OFFSET}})


def _from_archive(path: Path) -> Iterable[Review]:
    archive = Archive(path, LAYOUT)
    folders = {name: PurePosixPath(name).parent.name for name in archive.names(".txt")}
    found = [(name, FOLDERS.index(folder)) for name, folder in folders.items() if folder in FOLDERS]
    if not found:
        raise InputError(f"{path}: holds no .../pos/cv*.txt and .../neg/cv*.txt; {LAYOUT}")
    for name, label in found:
        yield _fold(path, name), label, archive.read(name, MAX_REVIEW)


def _fold(path: Path, name: str) -> str:
    """cv812_... is in fold 8."""
    stem = PurePosixPath(name).stem
    if not (stem.startswith("cv") and stem[2:5].isdigit()):
        raise InputError(f"{path}: member {name!r}; expected cv and three digits, which are its fold")
    return {"8": "val", "9": "test"}.get(stem[2], "train")


def _from_folders(root: Path) -> Iterable[Review]:
    for split in ("train", "test"):
        for label, name in enumerate(FOLDERS):
            files = sorted((root / split / name).glob("*.txt"), key=_number)
            if not files:
                raise UsageError(f"{root / split / name}: holds no review; {LAYOUT}")
            films = _films(root / split / f"urls_{name}.txt")
            for file in files:
                film = films.get(_number(file)[0], f"{name}/{file.name}")
                held_out = split == "train" and fraction(film) < VALIDATION
                yield "val" if held_out else split, label, read_file(file, "a review", MAX_REVIEW)


def _films(path: Path) -> dict[int, str]:
    """The film of each review: line n of the list is review n's address."""
    if not path.is_file():
        return {}
    lines = read_text_file(path, "one address a line").splitlines()
    return dict(enumerate(line.removesuffix("/usercomments") for line in lines))


def _number(file: Path) -> tuple[int, str]:
    """127_8.txt is review 127, of 8 stars."""
    head = file.stem.split("_")[0]
    return (int(head) if head.isdigit() else -1, file.name)


def _packed(reviews: Iterable[Review], seq_len: int) -> dict[str, TokenRows]:
    texts: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    labels: dict[str, list[int]] = {split: [] for split in SPLITS}
    for split, label, text in reviews:
        if not text:
            continue  # polarity and aclImdb have none; an empty file has nothing to learn from
        texts[split].append(np.frombuffer(text[:seq_len], np.uint8).astype(np.uint16) + OFFSET)
        labels[split].append(label)
    return {split: pack(texts[split], labels[split], np.uint16) for split in SPLITS}
