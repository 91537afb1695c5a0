"""The next base of a genome: FASTA, splits, strands, batches."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from essm_deploy.errors import InputError
from essm_train.tasks.dna import Dna, build, smoke_data
from essm_train.tasks.fasta import BASES, parse_fasta, read_genome, reverse_complement, split_genome
from essm_train.tasks.text import BOS, PAD
from tests.train.recipes import smoke_recipe

CPU = torch.device("cpu")


def letters(ids: np.ndarray) -> str:
    return "".join(BASES[i - 2] for i in ids)


def parse(text: str) -> list[str]:
    return [letters(stretch) for stretch in parse_fasta(Path("a.fa"), text.encode())]


def test_records_become_stretches_of_known_bases() -> None:
    assert parse(">one first\nACGT\nacgu\n>two\r\nNNAC\r\nGNNT\r\n") == ["ACGTACGT", "ACG", "T"]


def test_no_sequence_reaches_across_an_unknown_base_or_a_record() -> None:
    assert parse(">a\nAARTT\n>b\nCC\n") == ["AA", "TT", "CC"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ACGT\n", "begins with b'ACGT"),
        (">p\nMKLV*EDF\n", "record 'p' holds 'L', which is no base"),
        ("", "expected FASTA"),
    ],
)
def test_what_is_no_genome_is_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_the_other_strand_of_the_other_strand_is_the_first(codes: list[int]) -> None:
    tokens = np.array(codes, np.int64) + 2
    np.testing.assert_array_equal(reverse_complement(reverse_complement(tokens)), tokens)
    pairs = dict(zip("ACGT", "TGCA", strict=True))
    assert letters(reverse_complement(tokens)) == "".join(pairs[letter] for letter in reversed(letters(tokens)))


def test_the_splits_are_every_base_once_and_the_ends_are_held_out() -> None:
    stretches = [np.random.default_rng(i).integers(2, 6, n).astype(np.uint8) for i, n in enumerate((1000, 100, 2000))]
    genome = split_genome(stretches, 40)
    assert [genome.count(split) for split in ("train", "val", "test")] == [900 + 100 + 1800, 150, 150]
    np.testing.assert_array_equal(genome.val[0], stretches[0][900:950])
    np.testing.assert_array_equal(genome.test[1], stretches[2][1900:])


def test_a_folder_of_packed_files_is_read_and_a_short_genome_refused(tmp_path: Path) -> None:
    (tmp_path / "a.fna.gz").write_bytes(gzip.compress(b">a\n" + b"ACGT" * 100 + b"\n"))
    assert read_genome(tmp_path, 20).count("val") == 20
    with pytest.raises(InputError, match=r"400 known bases are too few; expected a stretch of about 1000"):
        read_genome(tmp_path, 50)
    (tmp_path / "a.fna.gz").rename(tmp_path / "a.zip")
    with pytest.raises(InputError, match=r"holds no \*.fa"):
        read_genome(tmp_path, 20)


@pytest.fixture
def task(tmp_path: Path) -> Dna:
    return build(smoke_recipe("dna"), smoke_data(tmp_path), CPU)


def test_a_batch_is_sequences_of_either_strand(task: Dna) -> None:
    text = "|".join(letters(stretch) for stretch in task.genome.train)
    other = "|".join(letters(reverse_complement(stretch.astype(np.int64))) for stretch in task.genome.train)
    backwards = 0
    for step in range(20):
        batch = task.batch(step)
        assert torch.equal(batch.inputs, task.batch(step).inputs)
        assert (batch.inputs[:, 0] == BOS).all()
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
        for row in batch.targets.numpy():
            assert (letters(row[row != PAD]) in text) != (letters(row[row != PAD]) in other)
            backwards += letters(row[row != PAD]) in other
    assert 20 < backwards < 60  # of 80, each with chance 1/2: four standard deviations on either side


def test_a_stretch_shorter_than_a_sequence_is_padded_and_weighs_less(tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text(">a\n" + "ACGT" * 500 + "N" + "ACGTA" * 4 + "\n")
    task = build(smoke_recipe("dna"), tmp_path / "a.fa", CPU)
    batches = [task.batch(step) for step in range(400)]
    for batch in batches:
        assert batch.weights is not None
        assert batch.weights.tolist() == (batch.targets != PAD).sum(dim=1).tolist()
    assert {20, 64} == {int(n) for batch in batches for n in batch.weights}


def test_bits_per_base_are_two_where_the_model_knows_nothing(task: Dna) -> None:
    class Even(torch.nn.Module):
        def forward(self, inputs: torch.Tensor, lengths: None, budget: int) -> torch.Tensor:
            logits = torch.full((*inputs.shape, 6), -1e4)
            logits[..., 2:] = 0.0
            return logits

    assert task.evaluate(Even(), "val", 4) == pytest.approx(2.0)
    assert task.samples("val") == task.genome.count("val") == 125
