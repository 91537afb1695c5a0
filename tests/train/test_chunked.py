"""Training in chunks of time computes the same sublayer, forwards and backwards."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from essm_deploy.errors import UsageError
from essm_deploy.spectral.bank import Bank, hankel_bank
from essm_train.chunked import CHUNK, ChunkedMixer, mixer_for
from essm_train.convolution import ChunkedTime, choose_mixer, mix_fft, mix_toeplitz
from essm_train.model import EsSsm, ModelConfig
from tests.checkpoints import random_bank

LENGTH, K = 288, 4  # the shortest multiple of the chunk whose bank has a realization


@pytest.fixture(scope="module")
def bank() -> Bank:
    return hankel_bank(LENGTH, K, method="factor", cache=False)


@pytest.fixture(scope="module")
def mixer(bank: Bank) -> ChunkedMixer:
    return ChunkedMixer(bank, (2, K))


def make_model(bank: Bank) -> EsSsm:
    """A language model whose spectral branch matters: projections at unit gain, gates half open."""
    torch.manual_seed(0)
    model = EsSsm(ModelConfig(16, 2, LENGTH, K, vocab_size=258, dropout=0.0, drop_path=0.0), bank.filters, bank.sigma)
    with torch.no_grad():
        for layer in model.layers:
            layer.spectral.projection.normal_(std=0.25)
            layer.spectral.gate.out.bias.zero_()
    return model


def chunked(model: EsSsm, mixer: ChunkedMixer) -> EsSsm:
    twin = copy.deepcopy(model)
    for layer in twin.layers:
        layer.spectral.mixer = ChunkedTime(mixer)
    return twin


@pytest.mark.parametrize("budget", [2, K])
@pytest.mark.parametrize("length", [CHUNK, 2 * CHUNK + 5, LENGTH])
def test_logits_and_gradients_are_those_of_the_fft(bank: Bank, mixer: ChunkedMixer, budget: int, length: int) -> None:
    plain = make_model(bank)
    twin = chunked(plain, mixer)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(2, 258, (2, length)))
    weights = torch.randn(2, length, 258, generator=torch.Generator().manual_seed(1))
    outputs = [model(tokens, None, budget) for model in (plain, twin)]
    # the realization is good to 1e-5 of a filter; the FFT rounds at about 1e-6
    assert torch.linalg.norm(outputs[1] - outputs[0]) <= 2e-5 * torch.linalg.norm(outputs[0])
    for output in outputs:
        (output * weights).sum().backward()
    for (name, a), b in zip(plain.named_parameters(), twin.parameters(), strict=True):
        assert torch.linalg.norm(b.grad - a.grad) <= 1e-4 * torch.linalg.norm(a.grad) + 1e-6, name


def test_gradients_are_those_of_finite_differences(bank: Bank) -> None:
    mixer = ChunkedMixer(bank, (2,))
    system = mixer.systems[2]
    for name in ("local", "inject", "power"):
        setattr(system, name, getattr(system, name).double())
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 3 * CHUNK, 2), (1, 3 * CHUNK, 2), (2, 2, 2))
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    torch.autograd.gradcheck(mixer, inputs, fast_mode=True)


def test_an_averaged_copy_of_a_model_shares_the_constants(bank: Bank, mixer: ChunkedMixer) -> None:
    model = chunked(make_model(bank), mixer)
    assert copy.deepcopy(model).layers[0].spectral.mixer is model.layers[0].spectral.mixer
    assert not any("mixer" in name for name in model.state_dict())


def test_a_length_that_is_no_multiple_of_the_chunk_is_refused(mixer: ChunkedMixer) -> None:
    with pytest.raises(ValueError, match="33 tokens are not a multiple of the chunk of 32"):
        mixer(torch.zeros(1, 33, 2), torch.zeros(1, 33, 2), torch.zeros(2, 2, 2))


def test_a_bank_without_a_realization_is_left_to_the_fft() -> None:
    assert mixer_for(Bank(random_bank(4, 64), np.ones(4), "embedded"), (2, 4)) is None


def test_the_convolution_is_chosen_by_length_and_machine(bank: Bank) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    short = Bank(random_bank(4, 64), np.ones(4), "embedded")
    noise = Bank(random_bank(4, LENGTH), np.ones(4), "embedded")
    assert choose_mixer("auto", short, (2, 4), cpu) is mix_toeplitz
    assert isinstance(choose_mixer("auto", bank, (2, 4), cpu), ChunkedTime)
    assert choose_mixer("auto", bank, (2, 4), gpu) is mix_fft
    assert choose_mixer("auto", noise, (2, 4), cpu) is mix_fft
    assert choose_mixer("fft", short, (2, 4), cpu) is mix_fft
    with pytest.raises(UsageError, match="no small realization"):
        choose_mixer("chunked", noise, (2, 4), cpu)


def test_a_budget_that_was_not_trained_takes_the_fft(bank: Bank, mixer: ChunkedMixer) -> None:
    twin = chunked(make_model(bank), mixer).eval()
    tokens = torch.full((1, 2 * CHUNK), 5)
    with torch.no_grad():
        assert torch.equal(twin(tokens, None, 3), make_model(bank).eval()(tokens, None, 3))


def test_groups_of_channels_through_the_fft_are_all_of_them_at_once(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_model(bank)
    grouped = copy.deepcopy(plain)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(2, 258, (2, 40)))
    wanted = plain(tokens, None, K)
    wanted.square().sum().backward()
    monkeypatch.setattr("essm_train.convolution.FFT_BYTES", 1)  # one channel at a time
    got = grouped(tokens, None, K)
    got.square().sum().backward()
    assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5)  # another order of a float32 sum
    for (name, a), b in zip(plain.named_parameters(), grouped.parameters(), strict=True):
        assert torch.linalg.norm(b.grad - a.grad) <= 1e-4 * torch.linalg.norm(a.grad) + 1e-6, name
