"""One optimiser step: parts add up to the batch, budgets are drawn as the recipe says, small ones learn from the full one."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from essm_deploy.families.es_ssm import reference
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.spectral.bank import Bank
from essm_train.budget import BudgetSampler
from essm_train.export import make_config, to_arrays
from essm_train.model import EsSsm, ModelConfig
from essm_train.optim import make_optimizer
from essm_train.parallel import World
from essm_train.settings import Settings, load_settings
from essm_train.step import Method, Part, distance, draw_budgets, optimise, part_loss, part_of, plan_step
from essm_train.tasks import Batch
from tests.checkpoints import random_bank

LENGTH, K = 12, 6
BANK = Bank(random_bank(K, LENGTH), np.geomspace(0.3, 1e-3, K), "embedded")


class Words:
    """A task of random tokens, some of whose targets do not count."""

    name, metric, direction, steps_per_epoch = "words", "accuracy", "maximize", 5
    model_config = ModelConfig(8, 2, LENGTH, K, vocab_size=9, dropout=0.0, drop_path=0.0)

    def batch(self, step: int, rows: int = 7) -> Batch:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(1, 9, (rows, LENGTH), generator=generator)
        targets = tokens.roll(-1, 1).masked_fill(torch.rand(rows, LENGTH, generator=generator) < 0.5, -100)
        return Batch(tokens, None, targets, (targets != -100).sum(dim=1))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())

    def model(self, **changes: Any) -> EsSsm:
        torch.manual_seed(0)
        model = EsSsm(dataclasses.replace(self.model_config, **changes), BANK.filters, BANK.sigma)
        with torch.no_grad():
            for layer in model.layers:
                layer.spectral.projection.normal_(std=0.3)
        return model


def settings(accumulate: int = 1, **budgets: Any) -> Settings:
    recipe = load_settings("keywords").with_train(accumulate=accumulate)
    return dataclasses.replace(recipe, budgets=dataclasses.replace(recipe.budgets, trained=(2, 4, K), n_full=3, **budgets))


SAMPLER = BudgetSampler((2, 4, K), 0, 3)


def gradients(model: EsSsm) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("accumulate", [2, 3, 7, 20])
def test_a_batch_in_parts_has_the_loss_and_the_gradient_of_the_whole(accumulate: int) -> None:
    task = Words()
    batch, results = task.batch(0), []
    for count in (1, accumulate):
        model = task.model()
        parts = plan_step(batch, 3, settings(count), SAMPLER, World())
        assert len(parts) == min(count, 7)
        loss, _ = optimise(model, task, parts, make_optimizer(model, 0.0, 0.0), Method(clip=1e9))  # type: ignore[arg-type]
        results.append((loss, gradients(model)))
    (whole, wanted), (loss, got) = results
    assert loss == pytest.approx(whole, rel=1e-5)
    for name, gradient in wanted.items():
        # the mean over rows would differ by a third: the rows have 2 to 10 targets that count
        assert torch.linalg.norm(got[name] - gradient) <= 1e-5 * torch.linalg.norm(gradient) + 1e-8, name


def test_checkpointed_activations_give_the_same_gradients() -> None:
    task, found = Words(), []
    for checkpointing in (False, True):
        model = task.model(checkpointing=checkpointing, dropout=0.3, drop_path=0.5).train()
        optimise(model, task, [Part(task.batch(0), 4, seed=5)], make_optimizer(model, 0.0, 0.0), Method())  # type: ignore[arg-type]
        found.append(gradients(model))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_pairs_of_rows_stay_together() -> None:
    pairs = Batch(torch.arange(10)[:, None], torch.arange(10), torch.arange(5))
    parts = [part_of(pairs, 0, 2), part_of(pairs, 2, 5)]
    assert [part.inputs.flatten().tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    assert [part.targets.tolist() for part in parts] == [[0, 1], [2, 3, 4]]
    assert [part.lengths.tolist() for part in parts if part.lengths is not None] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]


def test_ranks_share_every_row_and_a_rank_without_rows_adds_nothing() -> None:
    batch = Words().batch(0, rows=3)
    plans = [plan_step(batch, 1, settings(), SAMPLER, World(rank, 4)) for rank in range(4)]
    shares = [part.share for plan in plans for part in plan]
    assert sum(shares) == pytest.approx(1.0)
    assert shares.count(0.0) == 1
    assert len({part.budget for plan in plans for part in plan}) == 1
    assert len({part.seed for plan in plans for part in plan}) == 4


def test_one_budget_a_step_or_one_a_micro_batch() -> None:
    per_step = [draw_budgets(0, step, 4, SAMPLER, "step") for step in range(60)]
    assert all(len(set(budgets)) == 1 for budgets in per_step)
    per_part = [draw_budgets(0, step, 4, SAMPLER, "micro_batch") for step in range(60)]
    assert all(set(budgets) == {K} for step, budgets in enumerate(per_part) if step % 3 == 0)
    assert any(len(set(budgets)) > 1 for budgets in per_part)
    drawn = [k for step, budgets in enumerate(per_part) if step % 3 for k in budgets]
    assert set(drawn) == {2, 4, K}


def test_without_sampling_every_step_is_full_and_without_anchors_none_is() -> None:
    assert {BudgetSampler((2, 4, K), 0, 3, sampled=False).at(step, 0.0) for step in range(9)} == {K}
    assert {BudgetSampler((2, 4, K), 0, 0).at(step, 0.0) for step in range(9)} == {2}


# Distillation


def test_distillation_mixes_the_loss_with_the_distance_to_the_full_budget() -> None:
    task = Words()
    model, batch = task.model().eval(), task.batch(0)
    with torch.no_grad():
        plain = part_loss(model, task, Part(batch, 2), Method())  # type: ignore[arg-type]
        apart = distance(model(batch.inputs, None, 2), model(batch.inputs, None, K), continuous=False)
        mixed = part_loss(model, task, Part(batch, 2), Method(distill=0.25))  # type: ignore[arg-type]
        full = part_loss(model, task, Part(batch, K), Method(distill=0.25))  # type: ignore[arg-type]
        assert mixed == pytest.approx(0.75 * float(plain) + 0.25 * float(apart), rel=1e-5)
        assert full == part_loss(model, task, Part(batch, K), Method())  # type: ignore[arg-type]
    assert float(apart) > 1e-4  # ten times what the comparison above would let pass


def test_the_teacher_gets_no_gradient() -> None:
    task, method = Words(), Method(distill=1.0)
    model = task.model()
    part_loss(model, task, Part(task.batch(0), 2), method).backward()  # type: ignore[arg-type]
    for layer in model.layers:
        assert layer.spectral.projection.grad[:2].any()
        assert not layer.spectral.projection.grad[2:].any()


def test_the_distance_is_the_divergence() -> None:
    p, q = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, float(np.log(3.0))]])
    assert float(distance(q, p, continuous=False)) == pytest.approx(0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75))
    assert float(distance(q, p, continuous=True)) == pytest.approx(np.log(3.0) ** 2 / 2)


# Gates


@pytest.mark.parametrize("gate", ["static", "uniform"])
def test_a_simpler_gate_is_a_checkpoint_of_the_same_format(gate: str) -> None:
    task = Words()
    model = task.model(gate=gate)
    optimizer = make_optimizer(model, 0.1, 0.1)
    for step in range(3):
        optimise(model, task, [Part(task.batch(step), 4)], optimizer, Method())  # type: ignore[arg-type]
    model.eval()
    bias = model.layers[0].spectral.gate.out.bias.detach()
    assert bool((bias[:4] != -2.0).all()) if gate == "static" else bool((bias == 40.0).all())
    tokens = task.batch(9).inputs
    config = EsSsmConfig.model_validate(make_config(model.config, BANK, [2, 4, K]) | {"task": "text-generation"})
    arrays = to_arrays(model, BANK)
    assert not arrays["layers.1.spectral.gate.hidden.weight"].any()
    for budget in (1, 4, K):
        with torch.no_grad():
            got = model(tokens, None, budget).numpy()
        wanted = reference.forward(config, arrays, tokens.numpy(), None, budget)
        assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 2e-6  # the project's bound for float32


def test_a_uniform_gate_is_exactly_one_over_the_root_of_k() -> None:
    gate = Words().model(gate="uniform").layers[0].spectral.gate
    assert torch.equal(gate(torch.randn(2, 3, 8), 4), torch.full((2, 3, 4), 0.5))
    assert 1.0 / (1.0 + np.exp(-40.0)) == 1.0  # of the float64 reference as well


def test_a_static_gate_learns_its_biases_and_nothing_else() -> None:
    gate = Words().model(gate="static").layers[0].spectral.gate
    assert [name for name, p in gate.named_parameters() if p.requires_grad] == ["out.bias"]


# Precision


def test_bfloat16_is_for_everything_but_the_spectral_branch() -> None:
    task = Words()
    model, dtypes = task.model(), {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _m, _i, out, name=name: dtypes.__setitem__(name, out.dtype))
    mixed: list[set[torch.dtype]] = []
    inner = model.layers[0].spectral

    def mixer(u: torch.Tensor, gates: torch.Tensor, projection: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
        mixed.append({x.dtype for x in (u, gates, projection, filters)})
        return torch.zeros_like(u)

    inner.mixer = mixer
    method = Method(precision=torch.bfloat16)
    optimise(model, task, [Part(task.batch(0), 4)], make_optimizer(model, 0.0, 0.0), method)  # type: ignore[arg-type]
    assert mixed == [{torch.float32}]
    assert {dtype for name, dtype in dtypes.items() if ".spectral" in name} == {torch.float32}
    assert {dtypes[name] for name in ("layers.0.ffn.up", "layers.1.ffn.down")} == {torch.bfloat16}
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}


def test_a_step_at_a_small_budget_touches_only_its_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    task, widths = Words(), []
    model = task.model()
    for layer in model.layers:
        layer.spectral.mixer = lambda u, gates, projection, filters: (
            widths.append((gates.shape[-1], len(projection), len(filters))) or u * projection.sum() * gates.sum()
        )
    optimise(model, task, [Part(task.batch(0), 2)], make_optimizer(model, 0.0, 0.0), Method())  # type: ignore[arg-type]
    assert widths == [(2, 2, 2)] * 2


def test_a_deep_copy_is_an_equal_model() -> None:
    model = Words().model().eval()
    tokens = Words().batch(0).inputs
    assert torch.equal(copy.deepcopy(model)(tokens, None, 3), model(tokens, None, 3))
