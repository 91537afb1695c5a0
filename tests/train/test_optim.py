"""The schedule and the groups of the optimiser."""

from __future__ import annotations

import numpy as np
import pytest

from essm_train.model import EsSsm, ModelConfig
from essm_train.optim import learning_rate, make_optimizer, set_learning_rate


def small(**changes: object) -> EsSsm:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "seq_len": 6, "k_max": 4, "input_size": 3, "num_labels": 5}
    return EsSsm(ModelConfig(**{**sizes, **changes}), np.eye(4, 6), np.ones(4))


def test_the_rate_climbs_linearly_then_falls_as_a_cosine_to_its_floor() -> None:
    rates = [learning_rate(step, 110, 10, peak=1.0, floor=0.1) for step in range(111)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == 1.0
    assert rates[60] == pytest.approx(0.55)  # half way: the mean of peak and floor
    assert rates[110] == pytest.approx(0.1)
    assert all(np.diff(rates[10:]) < 0)


def test_matrices_decay_and_norms_embeddings_and_biases_do_not() -> None:
    for model in (small(), small(input_size=None, num_labels=0, vocab_size=9)):
        names = {id(p): name for name, p in model.named_parameters()}
        decayed, spared = ([names[id(p)] for p in g["params"]] for g in make_optimizer(model, 1e-3, 0.1).param_groups)
        assert sorted(decayed + spared) == sorted(names.values())
        ends = ("projection", "hidden.weight", "out.weight", "up.weight", "down.weight", "input.weight", "head.weight")
        assert all(name.endswith(ends) for name in decayed)
        assert all("norm" in name or name.endswith("bias") or name == "embedding.weight" for name in spared)


def test_betas_decay_and_rate_are_those_asked_for() -> None:
    optimizer = make_optimizer(small(), 1e-3, 0.1)
    assert [g["betas"] for g in optimizer.param_groups] == [(0.9, 0.95)] * 2
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.0]
    set_learning_rate(optimizer, 0.5)
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.5]
