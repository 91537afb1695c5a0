"""Multi-query associative recall: the rules, and the share of right answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from essm_deploy.errors import UsageError
from essm_train.tasks.mqar import build, check, smoke_data
from essm_train.tasks.mqar_rules import IGNORED, Recall, recall
from tests.train.recipes import smoke_recipe

CPU = torch.device("cpu")


@given(st.integers(1, 8), st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_every_key_is_asked_once_and_its_value_is_the_target(pairs: int, more: int, seed: int) -> None:
    rules = Recall(vocab_size=128, seq_len=4 * pairs + 2 * more, pairs=pairs)
    rules.check()
    tokens, targets = recall(rules, 3, np.random.default_rng(seed))
    assert tokens.shape == targets.shape == (3, rules.seq_len)
    for row, wanted in zip(tokens, targets, strict=True):
        keys, values = row[0 : 2 * pairs : 2], row[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert set(keys) <= set(range(1, 64))
        assert set(values) <= set(range(64, 128))
        asked = np.flatnonzero(wanted != IGNORED)
        assert (asked >= 2 * pairs).all()
        assert (asked % 2 == 0).all()
        assert dict(zip(row[asked], wanted[asked], strict=True)) == dict(zip(keys, values, strict=True))


def test_gaps_follow_the_power_law() -> None:
    rules = Recall(vocab_size=64, seq_len=44, pairs=1, power=0.01)
    _, targets = recall(rules, 20000, np.random.default_rng(0))
    places = (np.nonzero(targets != IGNORED)[1] - 2) // 2
    shares = np.bincount(places, minlength=21) / 20000
    law = np.arange(1, 22) ** -0.99
    # a share of p has a standard error of sqrt(p (1 - p) / n): 0.0032 at most; three of them and some
    np.testing.assert_allclose(shares, law / law.sum(), atol=0.012)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (Recall(64, 32, 9), "at most seq_len / 4 pairs"),
        (Recall(64, 33, 2), "an even length"),
        (Recall(32, 32, 2), "below the vocabulary's size"),
        (Recall(128, 64, 2, power=0.0), "power 0.0; expected above 0"),
    ],
)
def test_rules_that_do_not_fit_are_one_line(rules: Recall, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rules.check()


def test_a_batch_is_a_function_of_the_step_and_of_one_kind() -> None:
    task = build(smoke_recipe("mqar"), smoke_data(None), CPU)  # type: ignore[arg-type]  # it looks at no folder
    lengths = {task.batch(step).inputs.shape[1] for step in range(20)}
    assert lengths == {32, 64}
    assert torch.equal(task.batch(3).inputs, task.batch(3).inputs)
    assert not torch.equal(task.batch(3).inputs, task.batch(4).inputs)


def test_a_model_that_looks_the_key_up_is_right_always_and_one_that_guesses_rarely() -> None:
    class LookUp(torch.nn.Module):
        def forward(self, inputs: torch.Tensor, lengths: None, budget: int) -> torch.Tensor:
            logits = torch.zeros(*inputs.shape, 128)
            for row, tokens in enumerate(inputs.tolist()):
                for place, token in enumerate(tokens):
                    first = tokens.index(token)
                    if first + 1 < len(tokens):
                        logits[row, place, tokens[first + 1]] = 1.0
            return logits

    class Guess(torch.nn.Module):
        def forward(self, inputs: torch.Tensor, lengths: None, budget: int) -> torch.Tensor:
            return torch.randn(*inputs.shape, 128, generator=torch.Generator().manual_seed(0))

    task = build(smoke_recipe("mqar", test_samples=20), smoke_data(None), CPU)  # type: ignore[arg-type]
    assert task.evaluate(LookUp(), "test", 4) == 1.0
    assert task.evaluate(Guess(), "test", 4) < 0.15  # chance 1/128 for 120 questions
    assert task.samples("test") == 40


def test_lists_of_different_lengths_and_data_are_refused() -> None:
    with pytest.raises(UsageError, match=r"expected as many of each"):
        check(smoke_recipe("mqar", pairs=(2,)))
    with pytest.raises(UsageError, match=r"reads no data; write --data generated"):
        build(smoke_recipe("mqar"), smoke_data(None) / "folder", CPU)  # type: ignore[arg-type]
