"""The torch module computes what the float64 reference computes, and costs what the paper counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from essm_deploy.checkpoint import TensorSpec
from essm_deploy.families.es_ssm import reference
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.tensors import tensor_table
from essm_deploy.spectral.bank import Bank
from essm_train.convolution import convolve_fft, convolve_toeplitz
from essm_train.export import make_config, to_arrays
from essm_train.model import Dropout, EsSsm, ModelConfig, count_parameters, is_elastic, mean_over_time
from tests.checkpoints import random_bank

LENGTH, K = 24, 8
BANK = Bank(random_bank(K, LENGTH), np.geomspace(0.3, 1e-6, K), "embedded")
LABELS = {"task": "audio-classification", "id2label": {str(i): f"word {i}" for i in range(5)}}


def classifier(**changes: object) -> EsSsm:
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "seq_len": LENGTH, "k_max": K, "input_size": 7, "num_labels": 5}
    return perturbed(EsSsm(ModelConfig(**{**sizes, **changes}), BANK.filters, BANK.sigma))


def language_model() -> EsSsm:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "seq_len": LENGTH, "k_max": K, "vocab_size": 11}
    return perturbed(EsSsm(ModelConfig(**sizes), BANK.filters, BANK.sigma))


def perturbed(model: EsSsm) -> EsSsm:
    """Move every weight off its initial value, the spectral branch to unit gain, so that all of them matter."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p += (0.5 if "projection" in name else 0.1) * torch.randn(p.shape, generator=generator)
    return model.eval()


def config_of(model: EsSsm, fields: dict[str, object]) -> EsSsmConfig:
    return EsSsmConfig.model_validate(make_config(model.config, BANK, [2, 4, K]) | fields)


@pytest.mark.parametrize("budget", range(1, K + 1))
def test_a_classifier_equals_the_reference_at_every_budget(budget: int) -> None:
    model = classifier()
    inputs = np.random.default_rng(0).standard_normal((3, LENGTH, 7)).astype(np.float32)
    lengths = np.array([LENGTH, 5, 17])
    with torch.no_grad():
        got = model(torch.from_numpy(inputs), torch.from_numpy(lengths), budget).numpy()
    wanted = reference.forward(config_of(model, LABELS), to_arrays(model, BANK), inputs, lengths, budget)
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 2e-6  # the project's bound for float32


@pytest.mark.parametrize("time", [1, 9, LENGTH])
def test_a_language_model_equals_the_reference_on_any_length(time: int) -> None:
    model = language_model()
    tokens = np.random.default_rng(0).integers(0, 11, (2, time))
    with torch.no_grad():
        got = model(torch.from_numpy(tokens), budget=4).numpy()
    fields = {"task": "text-generation"}
    wanted = reference.forward(config_of(model, fields), to_arrays(model, BANK), tokens, None, 4)
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 2e-6


@pytest.mark.parametrize(("make", "fields"), [(classifier, LABELS), (language_model, {"task": "text-generation"})])
def test_the_state_dict_is_the_checkpoints_tensor_table(make: object, fields: dict[str, object]) -> None:
    model = make()  # type: ignore[operator]
    arrays = to_arrays(model, BANK)
    kinds = {np.dtype(np.float32): "F32", np.dtype(np.float64): "F64"}
    found = {TensorSpec(n, a.shape, kinds[a.dtype], is_elastic(n)) for n, a in arrays.items()}
    assert found == set(tensor_table(config_of(model, fields)))


@pytest.mark.parametrize("time", [1, 10, LENGTH])
def test_the_toeplitz_path_is_the_fft_path_is_the_definition(time: int) -> None:
    u = np.random.default_rng(2).standard_normal((2, time, 3))
    wanted = np.zeros((2, time, K, 3))
    for t in range(time):
        for s in range(t + 1):
            wanted[:, t] += BANK.filters[:, t - s][None, :, None] * u[:, s, None, :]
    for convolve in (convolve_fft, convolve_toeplitz):
        got = convolve(torch.from_numpy(u), torch.from_numpy(BANK.filters)).numpy()
        np.testing.assert_allclose(got, wanted, atol=1e-12)


def test_a_long_model_takes_the_fft_and_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = classifier(), torch.randn(2, LENGTH, 7)
    short = model(inputs)
    monkeypatch.setattr("essm_train.convolution.TOEPLITZ_MAX_LENGTH", LENGTH - 1)
    monkeypatch.setattr("essm_train.convolution.convolve_toeplitz", None)
    assert torch.allclose(model(inputs), short, atol=1e-4)


def test_the_spectral_branch_stays_float32_under_autocast() -> None:
    model, dtypes = classifier(), {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _m, _i, out, name=name: dtypes.__setitem__(name, out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(2, LENGTH, 7))
    assert dtypes["layers.0.ffn"] == torch.bfloat16  # so autocast is on
    spectral = {dtype for name, dtype in dtypes.items() if ".spectral" in name}
    assert spectral == {torch.float32}


def test_autocast_leaves_the_spectral_branch_as_exact_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model, u = classifier(), torch.randn(2, LENGTH, 16)
    branch, filters = model.layers[0].spectral, model.bank.filters
    exact = branch(u, filters, K)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(branch(u, filters, K), exact)


def test_padding_after_the_valid_steps_changes_nothing() -> None:
    model, inputs = classifier(), torch.randn(1, LENGTH, 7)
    padded = inputs.clone()
    padded[:, 10:] = 99.0
    short = model(inputs[:, :10])
    assert torch.allclose(model(padded, torch.tensor([10])), short, atol=1e-5)
    assert not torch.allclose(model(padded), short, atol=1e-2)


def test_the_mean_is_over_valid_steps_only() -> None:
    r = torch.arange(6.0).view(1, 3, 2)
    assert mean_over_time(r, torch.tensor([2])).tolist() == [[1.0, 2.0]]
    assert mean_over_time(r, None).tolist() == [[2.0, 3.0]]


def test_only_the_budgets_channels_get_gradients() -> None:
    model = classifier()
    model(torch.randn(2, LENGTH, 7), budget=3).square().sum().backward()
    for name, p in model.named_parameters():
        if is_elastic(name):
            assert p.grad[:3].abs().sum() > 0, name
            assert not p.grad[3:].any(), name


def test_initialisation_is_the_papers() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "seq_len": LENGTH, "k_max": K, "vocab_size": 258}
    model = EsSsm(ModelConfig(**sizes), BANK.filters, BANK.sigma)
    layer = model.layers[2]
    assert (layer.spectral.gate.out.bias == -2.0).all()
    assert float(layer.spectral.projection.detach().std()) == pytest.approx(1e-3, rel=0.02)
    assert float(model.embedding.weight[1:].detach().std()) == pytest.approx(0.02, rel=0.03)
    assert not model.embedding.weight[0].any()
    assert [block.drop_path for block in model.layers] == [0.0, 0.05, 0.1]


def test_training_drops_and_evaluation_does_not() -> None:
    model, inputs = classifier(), torch.randn(4, LENGTH, 7)
    assert torch.equal(model(inputs), model(inputs))
    model.train()
    assert not torch.equal(model(inputs), model(inputs))


@pytest.mark.parametrize("shape", [(100, 1000), (333, 301)])
def test_dropout_drops_its_share_and_keeps_the_mean(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    out = Dropout(0.1)(torch.ones(shape))
    assert float((out == 0).float().mean()) == pytest.approx(0.1, abs=0.004)  # four standard errors
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.9])


def test_drop_path_skips_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    layer = classifier(drop_path=0.5).train().layers[2]
    out = layer._drop(torch.ones(4000, 3, 2))
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert bool((out == out[:, :1, :1]).all())
    assert float(out.mean()) == pytest.approx(1.0, abs=0.07)  # four standard errors


@pytest.mark.parametrize(
    ("budget", "millions"),
    [(2, 335.020), (3, 366.884), (4, 398.749), (5, 430.613), (6, 462.477), (16, 781.121), (32, 1290.950)],
)
def test_the_main_model_has_the_papers_parameter_count(budget: int, millions: float) -> None:
    with torch.device("meta"):
        config = ModelConfig(hidden_size=1152, num_hidden_layers=24, seq_len=2048, vocab_size=258)
        model = EsSsm(config, np.zeros((32, 2048)), np.zeros(32))
    assert count_parameters(model, budget) / 1e6 == pytest.approx(millions, abs=5e-4)


def test_the_count_is_the_formula_of_the_paper() -> None:
    d, n, k, vocab = 16, 2, 3, 11
    layer = k * d * d + k * d // 2 + k + d * d // 2 + d // 2 + 8 * d * d + 9 * d
    assert count_parameters(language_model(), k) == n * layer + vocab * d + 2 * d


def test_a_model_takes_tokens_or_vectors() -> None:
    with pytest.raises(ValueError, match="either tokens"):
        classifier(vocab_size=9)
