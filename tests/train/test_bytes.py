"""The byte-level language model: its data, its metric, its command, and the checkpoint that ships."""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from essm_deploy.checkpoint import Checkpoint
from essm_deploy.errors import InputError, UsageError
from essm_deploy.families import open_checkpoint
from essm_deploy.families.es_ssm import reference
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.spectral.bank import Bank, hankel_bank
from essm_train.cli import run
from essm_train.job import training_folder
from essm_train.settings import ByteSettings, load_recipe
from essm_train.tasks.bytes import Bytes, bits_per_byte, check, smoke
from essm_train.tasks.markov import add_one_bits_per_byte, markov_bits_per_byte
from essm_train.tasks.text import BOS, PAD, read_text, sample, split_text, windows

SHIPPED = Path(__file__).parents[2] / "examples" / "checkpoints" / "bytes"
RECIPE = """
[model]
hidden_size = 8
num_hidden_layers = 2
k_max = 4
[budgets]
trained = [2, 3, 4]
[text]
seq_len = 64
short_len = 32
[train]
ema = 0.9
"""


@pytest.fixture
def settings(tmp_path: Path) -> ByteSettings:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return load_recipe(ByteSettings, "bytes", tmp_path / "recipe.toml")


@pytest.fixture
def poem(tmp_path: Path) -> Path:
    """Words drawn at random: 4,000 bytes that no two places share by chance."""
    letters = np.random.default_rng(0).integers(97, 123, 4000).astype(np.uint8)
    letters[::6] = 32
    (tmp_path / "poem.txt").write_bytes(letters.tobytes())
    return tmp_path / "poem.txt"


@pytest.fixture(scope="module")
def small() -> Bank:
    return hankel_bank(64, 4, method="factor", cache=False)


@pytest.fixture
def small_bank(small: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe's bank, which takes seconds, computed once for all tests."""
    monkeypatch.setattr("essm_train.job.hankel_bank", lambda *_, **__: small)


def as_bytes(text: bytes) -> np.ndarray:
    return np.frombuffer(text, dtype=np.uint8)


# Data


def test_the_splits_are_the_whole_file_in_order_and_nothing_twice() -> None:
    data = as_bytes(bytes(i % 251 for i in range(1001)))
    text = split_text(data)
    assert [len(text[split]) for split in ("train", "val", "test")] == [901, 50, 50]
    np.testing.assert_array_equal(np.concatenate([text.train, text.val, text.test]), data)


def test_no_training_sequence_reaches_into_the_held_out_bytes() -> None:
    data = np.concatenate([np.full(180, 7), np.full(10, 8), np.full(10, 9)]).astype(np.uint8)
    text = split_text(data)
    _, targets = sample(text.train, 500, 32, np.random.default_rng(0))
    assert set(np.unique(targets)) == {7 + 2}


def test_sequences_start_anywhere_up_to_the_last_place_that_fits() -> None:
    _, targets = sample(np.arange(10, dtype=np.uint8), 200, 4, np.random.default_rng(0))
    assert set(targets[:, 0] - 2) == set(range(7))


def test_tokens_are_bytes_plus_two_after_bos() -> None:
    inputs, targets = sample(as_bytes(b"\x00\xffa"), 1, 3, np.random.default_rng(0))
    assert targets.tolist() == [[2, 257, 99]]
    assert inputs.tolist() == [[BOS, 2, 257]]


def test_windows_judge_each_byte_once_and_pad_the_rest() -> None:
    inputs, targets = windows(as_bytes(b"abcde"), 3)
    assert targets.tolist() == [[99, 100, 101], [102, 103, PAD]]
    assert inputs.tolist() == [[BOS, 99, 100], [BOS, 102, 103]]


def test_a_batch_is_a_function_of_the_step_and_grows_long_half_way(poem: Path, settings: ByteSettings) -> None:
    task = Bytes(poem, settings, torch.device("cpu"))
    steps = settings.train.epochs * task.steps_per_epoch
    assert task.batch(0).inputs.shape == (2 * settings.train.batch_size, 32)
    assert task.batch(steps // 2 - 1).inputs.shape == (2 * settings.train.batch_size, 32)
    assert task.batch(steps // 2).inputs.shape == (settings.train.batch_size, 64)
    assert torch.equal(task.batch(5).inputs, task.batch(5).inputs)
    assert not torch.equal(task.batch(5).inputs, task.batch(6).inputs)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"In the beginning", r"16 bytes are too few; expected about 1280"), (None, "cannot be read")],
)
def test_a_useless_file_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_text(tmp_path / "text", 64)
    assert "\n" not in str(caught.value)


def test_a_directory_is_not_a_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory; expected a text file"):
        read_text(tmp_path, 64)


# Metric


class Spelled(torch.nn.Module):
    """Logits that give the right next byte of `data` a probability of 1/4, whatever the input says."""

    def __init__(self, targets: np.ndarray) -> None:
        super().__init__()
        self.rows = iter(targets)

    def forward(self, inputs: torch.Tensor, lengths: None, budget: int) -> torch.Tensor:
        logits = torch.zeros(*inputs.shape, 258)
        for row in logits:
            row[torch.arange(len(row)), torch.from_numpy(next(self.rows))] = math.log(257 / 3)
        return logits


def test_bits_per_byte_are_the_mean_of_minus_log2_p_without_the_padding() -> None:
    inputs, targets = windows(as_bytes(b"abcdefghij"), 4)
    assert bits_per_byte(Spelled(targets), inputs, targets, 4, torch.device("cpu")) == pytest.approx(2.0, rel=1e-6)


def test_the_loss_ignores_the_padding(poem: Path, settings: ByteSettings) -> None:
    task, logits = Bytes(poem, settings, torch.device("cpu")), torch.randn(1, 3, 258)
    whole = task.loss(logits[:, :2], torch.tensor([[5, 6]]))
    torch.testing.assert_close(task.loss(logits, torch.tensor([[5, 6, PAD]])), whole)


# Baseline


def test_the_markov_chain_is_what_one_computes_by_hand() -> None:
    # train "abab": p0(a) = (2 + 2/256) / (4 + 2); after "a" came b twice: N = 2, T = 1; "b" was followed by a once
    p0 = (2 + 2 / 256) / 6
    p1_b = (2 + 1 * p0) / 3
    p1_a = (1 + 1 * p0) / 2
    train = as_bytes(b"abab")
    assert markov_bits_per_byte(train, as_bytes(b"ab"), 0) == pytest.approx(-math.log2(p0))
    assert markov_bits_per_byte(train, as_bytes(b"ab"), 1) == pytest.approx(-(math.log2(p0) + math.log2(p1_b)) / 2)
    assert markov_bits_per_byte(train, as_bytes(b"ba"), 1) == pytest.approx(-(math.log2(p0) + math.log2(p1_a)) / 2)


def test_a_context_that_never_occurred_falls_back_on_the_shorter_one() -> None:
    train = as_bytes(b"abab")
    p0_c = (2 / 256) / 6
    p0_b = (2 + 2 / 256) / 6  # "c" has no followers: order 1 is order 0
    assert markov_bits_per_byte(train, as_bytes(b"cb"), 1) == pytest.approx(-(math.log2(p0_c) + math.log2(p0_b)) / 2)


def test_the_chains_chances_of_all_bytes_sum_to_one() -> None:
    train = as_bytes(b"the cat sat on the mat and the rat")
    held_out = [as_bytes(b"the" + bytes([last])) for last in range(256)]
    prefix = 3 * markov_bits_per_byte(train, as_bytes(b"the"), 3)
    bits = [4 * markov_bits_per_byte(train, data, 3) - prefix for data in held_out]
    assert sum(2.0**-b for b in bits) == pytest.approx(1.0)


def test_add_one_is_what_one_computes_by_hand() -> None:
    # "a" occurred twice as a context, both times before b; "b" once, before a
    train = as_bytes(b"abab")
    expected = -(math.log2(3 / 258) + math.log2(2 / 257)) / 2
    assert add_one_bits_per_byte(train, as_bytes(b"aba"), 1) == pytest.approx(expected)


# Command


def test_the_packaged_recipe_is_that_of_the_issue() -> None:
    settings = load_recipe(ByteSettings, "bytes")
    check(settings)
    assert (settings.model.hidden_size, settings.model.num_hidden_layers, settings.model.k_max) == (128, 3, 32)
    assert settings.text.seq_len == 1024
    assert settings.budgets.trained == (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


def test_a_smoke_run_is_four_steps(settings: ByteSettings) -> None:
    assert smoke(settings).train.epochs * smoke(settings).text.interval == 4


def test_steps_are_rounded_up_to_whole_intervals(
    poem: Path, settings: ByteSettings, tmp_path: Path, small_bank: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("[train]", "interval = 2\n[train]"))
    command = ["bytes", "--data", str(poem), "--config", str(tmp_path / "recipe.toml"), "-o", str(tmp_path / "out")]
    assert run([*command, "--steps", "3"]) == 0
    assert "epoch 2/2" in capsys.readouterr().err
    assert "--steps 3" in open_checkpoint(tmp_path / "out").card


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("short_len = 48", "expected a multiple of 32 that divides text.seq_len 64"),
        ("short_len = 0", "expected a multiple of 32"),
        ("seq_len = 96\nshort_len = 64", "divides text.seq_len 96"),
        ("short_share = 1.5", "expected 0 to 1"),
        ("interval = 0", "expected 1 or more"),
    ],
)
def test_lengths_that_do_not_fit_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    keys = {"seq_len": "64", "short_len": "32"} | dict(line.split(" = ") for line in text.splitlines())
    (tmp_path / "wrong.toml").write_text("[text]\n" + "\n".join(f"{key} = {value}" for key, value in keys.items()))
    settings = load_recipe(ByteSettings, "bytes", tmp_path / "wrong.toml")
    with pytest.raises(UsageError, match=message):
        check(settings)


def test_a_smoke_run_ends_in_a_checkpoint_that_the_compiler_accepts(
    poem: Path, settings: ByteSettings, tmp_path: Path, small_bank: None, capsys: pytest.CaptureFixture[str]
) -> None:
    out, recipe = tmp_path / "out", tmp_path / "recipe.toml"
    command = ["bytes", "--data", str(poem), "-o", str(out), "--config", str(recipe), "--smoke", "--source", "A poem."]
    assert run(command) == 0, capsys.readouterr().err
    checkpoint = open_checkpoint(out)
    assert checkpoint.config["task"] == "text-generation"
    assert (checkpoint.config["vocab_size"], checkpoint.config["overflow"]) == (258, "window")
    assert checkpoint.config["bank"]["kind"] == "exact"
    assert "A poem." in checkpoint.card
    assert hashlib.sha256(poem.read_bytes()).hexdigest() in checkpoint.card
    assert str(tmp_path) not in checkpoint.card
    assert not training_folder(out).joinpath("state.pt").exists()
    assert_quality_is_that_of_the_reference(checkpoint, poem)


def assert_quality_is_that_of_the_reference(checkpoint: Checkpoint, poem: Path) -> None:
    quality = checkpoint.quality
    assert quality is not None
    assert (quality["metric"], quality["direction"]) == ("bits_per_byte", "minimize")
    assert (quality["split"], quality["samples"]) == ("test", 200)
    inputs, targets = windows(read_text(poem, 64).test, 64)
    # six decimals in the file, and a float32 forward pass of two layers
    expected = {str(k): pytest.approx(bits_by_reference(checkpoint, inputs, targets, k), abs=2e-6) for k in (2, 3, 4)}
    assert quality["budgets"] == expected


def test_minutes_choose_a_number_of_steps_that_steps_repeats(
    poem: Path, settings: ByteSettings, tmp_path: Path, small_bank: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("[train]", "interval = 2\n[train]"))
    command = ["bytes", "--data", str(poem), "--config", str(tmp_path / "recipe.toml")]
    assert run([*command, "-o", str(tmp_path / "timed"), "--minutes", "0.01"]) == 0
    found = re.search(r"^--steps (\d+)$", capsys.readouterr().err, re.MULTILINE)
    assert found is not None
    assert int(found[1]) % 2 == 0
    assert f"--steps {found[1]}" in open_checkpoint(tmp_path / "timed").card


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--minutes", "1", "--steps", "5"], "--minutes chooses the number of steps"),
        (["--steps", "0"], "0 is not in the range"),
    ],
)
def test_options_that_contradict_are_one_line(
    poem: Path, tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bytes", "--data", str(poem), "-o", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_text_is_found_before_anything_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bytes", "--data", str(tmp_path / "none"), "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "cannot be read (No such file or directory)" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


# The checkpoint that ships


def test_the_shipped_checkpoint_is_small_and_of_the_recipes_shape() -> None:
    config = open_checkpoint(SHIPPED).config
    assert (config["hidden_size"], config["num_hidden_layers"], config["k_max"], config["seq_len"]) == (128, 3, 32, 1024)
    assert config["budgets"] == list(load_recipe(ByteSettings, "bytes").budgets.trained)
    assert (SHIPPED / "model.safetensors").stat().st_size < 10e6


def test_the_shipped_checkpoint_beats_the_order_3_chain_from_four_channels_on() -> None:
    checkpoint = open_checkpoint(SHIPPED)
    chain = re.search(r"\| order 3, interpolated \(Witten-Bell\) \| ([0-9.]+) \|", checkpoint.card)
    assert chain is not None
    assert checkpoint.quality is not None
    for k, bits in checkpoint.quality["budgets"].items():
        row = re.search(rf"\| {k} \| {bits:.3f} \| ([-+0-9.]+) \|", checkpoint.card)
        assert row is not None
        assert float(row[1]) == pytest.approx(bits - float(chain[1]), abs=1.1e-3)  # both sides of the difference are rounded
        assert bits < float(chain[1]) or int(k) < 4


def test_the_shipped_checkpoint_writes_the_language_of_its_source() -> None:
    """A verse of the test split: a model that had learnt nothing would take 8 bits a byte, the chains take 2.3 to 2.5."""
    verse = b"Jas1:5 If any of you lack wisdom, let him ask of God, that giveth to all men liberally, and upbraideth not; and"
    inputs, targets = windows(as_bytes(verse), len(verse))
    for k in (4, 32):
        assert bits_by_reference(open_checkpoint(SHIPPED), inputs, targets, k) < 2.5


def bits_by_reference(checkpoint: Checkpoint, inputs: np.ndarray, targets: np.ndarray, budget: int) -> float:
    config = EsSsmConfig.model_validate(dict(checkpoint.config))
    logits = reference.forward(config, checkpoint.tensors, inputs, None, budget)
    logits = logits - logits.max(-1, keepdims=True)
    chance = np.take_along_axis(logits - np.log(np.exp(logits).sum(-1, keepdims=True)), targets[..., None], -1)[..., 0]
    return float(-chance[targets != PAD].mean() / np.log(2))
