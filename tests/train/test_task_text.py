"""Film reviews and pairs of papers: their layouts, and splits that share no film and no cited paper."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from essm_deploy.errors import InputError, UsageError
from essm_train.tasks import retrieval, reviews
from essm_train.tasks.citations import FILES, load_pairs, with_strangers
from essm_train.tasks.examples import TokenRows
from tests.train.recipes import smoke_recipe

CPU = torch.device("cpu")


def texts(rows: TokenRows) -> list[str]:
    return [bytes((rows[i] - 2).astype(np.uint8)).decode() for i in range(len(rows))]


# Reviews


def test_reviews_keep_their_split_and_their_label(tmp_path: Path) -> None:
    data = reviews.load(reviews.smoke_data(tmp_path), 200)
    for split in ("train", "val", "test"):
        rows = data.splits[split]
        folder = "test" if split == "test" else "train"
        assert all(text.startswith(f"{folder} ") for text in texts(rows))
        assert [("fine" in text) for text in texts(rows)] == [bool(label) for label in rows.labels]
    assert len(data.splits["test"]) == 20
    assert len(data.splits["train"]) + len(data.splits["val"]) == 20


def test_no_film_is_in_two_splits(tmp_path: Path) -> None:
    root = reviews.smoke_data(tmp_path) / "aclImdb"
    for name in reviews.FOLDERS:
        films = "\n".join(f"http://films/{i // 3}/usercomments" for i in range(10))
        (root / "train" / f"urls_{name}.txt").write_text(films + "\n")
    data = reviews.load(root, 200)
    held_out = {split: {int(text.split()[1][:-1]) // 3 for text in texts(data.splits[split])} for split in ("train", "val")}
    assert held_out["val"]
    assert not held_out["train"] & held_out["val"]


def test_a_review_is_cut_to_its_first_bytes(tmp_path: Path) -> None:
    data = reviews.load(reviews.smoke_data(tmp_path), 7)
    assert set(data.splits["train"].lengths) == {7}
    assert set(texts(data.splits["test"])) <= {f"test {i}:" for i in range(10)}


def archive(path: Path, names: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, f"text of {name}")
    return path


def test_the_folds_of_the_polarity_archive_are_its_splits(tmp_path: Path) -> None:
    names = [f"movie_reviews/{side}/cv{i}_1.txt" for side in ("neg", "pos") for i in ("000", "799", "812", "999")]
    data = reviews.load(archive(tmp_path / "a.zip", [*names, "README.txt", "movie_reviews/README"]), 99)
    assert {split: [text.split("cv")[1][:3] for text in texts(rows)] for split, rows in data.splits.items()} == {
        "train": ["000", "799"] * 2,
        "val": ["812"] * 2,
        "test": ["999"] * 2,
    }


@pytest.mark.parametrize(
    ("names", "message"),
    [(["a/b.txt"], "holds no .../pos/cv"), (["x/pos/first.txt"], "'x/pos/first.txt'; expected cv and three digits")],
)
def test_another_archive_is_one_line(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        reviews.load(archive(tmp_path / "a.zip", names), 99)


def test_a_folder_without_reviews_says_which(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train/neg: holds no review; expected aclImdb with"):
        reviews.load(tmp_path, 99)


@pytest.mark.needs_data
def test_the_polarity_reviews_are_2000_in_ten_folds(data_dir: Path) -> None:
    data = reviews.load(data_dir / "movie_reviews.zip", 4096)
    assert data.sizes() == "train 1600, val 200, test 200"
    assert all(rows.labels.mean() == 0.5 for rows in data.splits.values())


# Pairs of papers


def test_pairs_lie_side_by_side_in_a_batch(tmp_path: Path) -> None:
    task = retrieval.build(smoke_recipe("retrieval"), retrieval.smoke_data(tmp_path), CPU)
    batch = task.batch(0)
    assert (len(batch.inputs), len(batch.targets)) == (8, 4)
    rows = [bytes((row[row > 0] - 2).tolist()).decode() for row in batch.inputs]
    for i, related in enumerate(batch.targets.tolist()):
        assert rows[2 * i].startswith("on topic")
        assert rows[2 * i + 1].startswith("more on" if related else "nothing of")
        assert rows[2 * i].split()[-1] == rows[2 * i + 1].split()[-1]


def test_the_logit_is_the_scaled_dot_product_of_the_towers(tmp_path: Path) -> None:
    task = retrieval.build(smoke_recipe("retrieval"), retrieval.smoke_data(tmp_path), CPU)
    towers = torch.tensor([[1.0, 2.0, 0.0, 0.0], [3.0, 4.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    assert task.logits(towers).tolist() == [[0.0, 11.0 / 2.0], [0.0, 0.0]]


def test_a_paper_in_many_pairs_is_held_once(tmp_path: Path) -> None:
    for name in FILES.values():
        (tmp_path / name).write_text("1\ta\tb\tone\ttwo\n0\ta\tc\tone\tthree\n")
    data = load_pairs(tmp_path, 99)
    assert texts(data.splits["train"].papers) == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1.0\ta\tb\tone", "line 2 has 4 columns and the label b'1.0'; is the file cut off"),
        ("label\ta\tb\tone\ttwo", "line 2 has 5 columns and the label b'label'"),
    ],
)
def test_a_wrong_line_of_pairs_is_named(tmp_path: Path, line: str, message: str) -> None:
    for name in FILES.values():
        (tmp_path / name).write_text("1\ta\tb\tone\ttwo\n" + line + "\n")
    with pytest.raises(InputError, match=message):
        load_pairs(tmp_path, 99)


def test_a_stranger_does_not_cite_and_each_cited_paper_has_as_many(tmp_path: Path) -> None:
    cites = [(f"p{i}", f"c{i % 3}") for i in range(12)] + [("p0", "c1")]
    pairs = with_strangers(cites, np.random.default_rng(0))
    assert all(((a, b) in set(cites)) == bool(label) for label, a, b in pairs)
    for cited in ("c0", "c1", "c2"):
        labels = [label for label, _, b in pairs if b == cited]
        assert sum(labels) * 2 == len(labels)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"{", "not JSON of docs and cites"),
        (b"[]", "not JSON of docs and cites"),
        (json.dumps({"docs": {"a": "x"}, "cites": [["a", "b"]]}).encode(), "cites names 'b', whose text is not in docs"),
    ],
)
def test_a_wrong_document_of_pairs_is_one_line(tmp_path: Path, document: bytes, message: str) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(document))
    with pytest.raises(InputError, match=message):
        load_pairs(tmp_path / "a.json.gz", 99)


@pytest.mark.needs_data
def test_no_cited_paper_is_in_two_splits(data_dir: Path) -> None:
    data = load_pairs(data_dir / "acl_citation_pairs.json.gz", 4000)
    cited = {split: set(rows.pairs[:, 1]) for split, rows in data.splits.items()}
    assert not cited["train"] & cited["val"]
    assert not cited["train"] & cited["test"]
    assert not cited["val"] & cited["test"]
    assert sum(len(rows) for rows in data.splits.values()) == 2 * 582
    assert all(rows.labels.mean() == 0.5 for rows in data.splits.values())


# What both share


class Knows(torch.nn.Module):
    """Scores the class that the text itself names, as far as it sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def forward(self, inputs: torch.Tensor, lengths: torch.Tensor, budget: int) -> torch.Tensor:
        self.rows += len(inputs)
        texts = [bytes((row[:n] - 2).tolist()).decode() for row, n in zip(inputs, lengths.tolist(), strict=True)]
        return torch.tensor([[0.0, 1.0 if "fine" in text else -1.0] for text in texts])


def test_accuracy_is_the_share_of_right_answers_over_every_sample(tmp_path: Path) -> None:
    task, model = reviews.build(smoke_recipe("text"), reviews.smoke_data(tmp_path), CPU), Knows()
    assert task.evaluate(model, "test", 4) == 1.0
    assert model.rows == task.samples("test") == 20
    task.data.splits["test"].labels[:5] ^= 1
    assert task.evaluate(model, "test", 4) == 0.75


def test_a_part_of_the_validation_split_is_of_both_classes_and_always_the_same(tmp_path: Path) -> None:
    folder = reviews.smoke_data(tmp_path) / "aclImdb" / "train"
    for name, word in zip(reviews.FOLDERS, ("dull", "fine"), strict=True):
        for i in range(10, 400):
            (folder / name / f"{i}_5.txt").write_text(f"train {i}: a {word} film.")
    task = reviews.build(smoke_recipe("text", val_samples=30), tmp_path, CPU)
    first, again = (task.scores(Knows(), "val", 4)[1] for _ in range(2))
    assert len(first) == task.samples("val") == 30
    assert torch.equal(first, again)
    assert 5 <= int(first.sum()) <= 25  # drawn from equal halves: more than three standard deviations on either side
