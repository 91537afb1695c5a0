"""ListOps: the generator's rules, the files, and what is wrong with them."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from essm_deploy.errors import InputError, UsageError
from essm_train.cli import run
from essm_train.tasks.listops import Data, build, check, generated, load, read_tsv, smoke_data, write_files
from essm_train.tasks.listops_rules import IDS, LRA, Generator, Rules, depth_of, value_of
from tests.train.recipes import smoke_recipe


def ids(text: str) -> list[int]:
    return [IDS[word] for word in text.split()]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[SM 9 8 7 ]", 4),
        ("[MED 1 2 ]", 1),  # int(1.5)
        ("[MED 3 9 4 ]", 4),
        ("[MIN [SM 5 5 ] 3 ]", 0),
    ],
)
def test_the_operators_are_those_of_the_benchmark(text: str, value: int) -> None:
    assert value_of(ids(text)) == value


@given(st.integers(0, 2**32 - 1))
def test_a_generated_tree_has_the_value_that_reading_it_gives(seed: int) -> None:
    tokens, value = Generator(np.random.default_rng(seed), Rules(min_length=3, max_length=60)).sample()
    assert value_of(tokens) == value
    assert 3 < len(tokens) < 60


@given(st.lists(st.integers(1, 15), max_size=12))
def test_what_is_no_tree_is_found_wherever_it_breaks(tokens: list[int]) -> None:
    try:
        value = value_of(tokens)
    except ValueError:
        return
    assert 0 <= value <= 9
    assert depth_of(tokens) == 0 if len(tokens) == 1 else depth_of(tokens) >= 1


def test_the_sequences_are_distributed_as_those_of_the_official_generator() -> None:
    generator = Generator(np.random.default_rng(1), LRA)
    rows = [generator.sample() for _ in range(800)]
    lengths, labels = np.array([len(tokens) for tokens, _ in rows]), Counter(value for _, value in rows)
    # of 2,000 official ones: acceptance 8.3 %, mean 1,061, median 997, range 501 to 1,995, labels 0 and 9 about 17 % each,
    # the others 7.5 to 9.6 %. With 800 the mean has a standard error of 15, the acceptance 0.3 %, a share of 17 % 1.3 %
    assert 800 / generator.tried == pytest.approx(0.083, abs=0.012)
    assert lengths.mean() == pytest.approx(1061, abs=60)
    assert np.median(lengths) == pytest.approx(997, abs=80)
    assert 500 < lengths.min() < 540
    assert 1900 < lengths.max() < 2000
    for label in range(10):
        share = 0.17 if label in (0, 9) else 0.0855
        assert labels[label] / 800 == pytest.approx(share, abs=0.045), label
    assert {depth_of(tokens) for tokens, _ in rows} == {9}


@pytest.mark.needs_data
def test_the_official_sequences_have_the_values_that_they_say(data_dir: Path) -> None:
    rows = list(read_tsv(data_dir / "listops_lra_rules_2000.tsv.gz", 2000))
    assert len(rows) == 2000
    assert all(value_of(tokens) == value for tokens, value in rows)
    data = load(data_dir / "listops_lra_rules_2000.tsv.gz", 2000)
    assert data.sizes() == "train 1600, val 200, test 200"


def test_parentheses_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n")
    assert list(read_tsv(tmp_path / "a.tsv", 8)) == [(ids("[MAX 2 9 ]"), 9)]


def test_written_files_are_read_back_in_their_splits(tmp_path: Path) -> None:
    write_files(tmp_path, Rules(min_length=4, max_length=40), {"train": 6, "val": 3, "test": 2}, seed=1)
    data = load(tmp_path, 40)
    assert data.sizes() == "train 6, val 3, test 2"
    rows = generated(Data(40, 6, 3, 2, 1, 4, 40))
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(data.splits[split].rows(np.array([1]))[0], rows.splits[split].rows(np.array([1]))[0])


def test_no_sequence_is_in_two_splits() -> None:
    data = generated(Data(16, 40, 20, 20, 0, 2, 8))
    rows = [data.splits[split] for split in ("train", "val", "test")]
    sequences = [bytes(part[i]) for part in rows for i in range(len(part))]
    assert len(set(sequences)) == len(sequences) == 80


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[MAX 1 2 ]\t2\n", r"line 1 is '\[MAX 1 2 \]"),
        (b"Source\tTarget\n[MAX 1 2 ]\n", "line 2 is no sequence, tab and digit; is the file cut off"),
        (b"Source\tTarget\n[AVG 1 2 ]\t2\n", r"line 2 holds '\[AVG'; expected \[MIN"),
        (b"Source\tTarget\n[MAX 1 2 ]\t1\n", "line 2 says 1, but the value is 2"),
        (b"Source\tTarget\n[MAX 1 2\t2\n", "line 2 is no ListOps sequence"),
        (b"Source\tTarget\n[MAX 1 2 3 4 5 6 7 8 9 ]\t9\n", r"line 2 has 11 tokens; expected 1 to data.seq_len 8"),
        (b"Source\tTarget\n[MAX 1 \xff ]\t9\n", "not UTF-8"),
        (gzip.compress(b"Source\tTarget\n" + b"[MAX 1 2 ]\t2\n" * 3)[:-12], "cannot be read to its end"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        list(read_tsv(tmp_path / "a.tsv", 8))
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_split_says_which(tmp_path: Path) -> None:
    smoke_data(tmp_path)
    (tmp_path / "basic_val.tsv").unlink()
    with pytest.raises(UsageError, match=r"basic_val.tsv is missing; expected basic_"):
        load(tmp_path, 64)


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match=r"expected them to ascend"):
        check(smoke_recipe("listops", max_length=200))


def test_a_batch_is_a_function_of_the_step_and_an_epoch_is_every_sequence_once(tmp_path: Path) -> None:
    recipe, data = smoke_recipe("listops"), smoke_data(tmp_path)
    task, again = (build(recipe, data, torch.device("cpu")) for _ in range(2))
    assert task.steps_per_epoch == 2
    assert torch.equal(again.batch(1).inputs, task.batch(1).inputs)
    rows = task.data.splits["train"]
    for epoch in (0, 1, 5):
        batches = [task.batch(2 * epoch + i) for i in range(2)]
        assert sum(int(batch.inputs.sum()) for batch in batches) == int(rows.flat.sum())
        assert sorted(torch.cat([batch.lengths for batch in batches]).tolist()) == sorted(rows.lengths)
    assert len({str(task.batch(2 * epoch).targets.tolist()) for epoch in range(8)}) > 1


def test_the_card_of_generated_data_says_so(tmp_path: Path, shared_banks: None, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.toml").write_text(
        "[data]\nseq_len = 64\ntrain_samples = 4\nval_samples = 2\ntest_samples = 2\nmin_length = 4\nmax_length = 40\n"
        "[model]\nhidden_size = 8\nk_max = 2\n[budgets]\ntrained = [2]\n[train]\nbatch_size = 4\n"
    )
    command = ["listops", "--data", "generated", "-o", str(tmp_path / "out"), "--config", str(tmp_path / "small.toml")]
    assert run([*command, "--device", "cpu"]) == 0, capsys.readouterr().err
    card = (tmp_path / "out" / "README.md").read_text()
    assert "essm-train listops --data generated -o CHECKPOINT --config small.toml" in card
    assert "Generated by Long Range Arena's rules, seed 0" in card
