"""Every lowering, at every budget: the whole model's sequence engine is the float64 reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essm_deploy.backends import BACKENDS
from essm_deploy.backends.emit import prepare
from essm_deploy.checkpoint import Checkpoint
from essm_deploy.errors import BuildError
from essm_deploy.families import family_of, open_checkpoint
from essm_deploy.families.base import Plan
from essm_deploy.families.es_ssm.config import EsSsmConfig
from essm_deploy.families.es_ssm.reference import forward
from essm_deploy.runtime.session import OrtSession
from essm_deploy.spectral.lowerings.base import Lowering
from essm_deploy.spectral.planning import NAMES, lawful_lowerings
from tests.checkpoints import BYTES, KEYWORDS, make_checkpoint

SEQUENCE = 2e-6
"""What float32 sums of a few hundred products, a handful of times in a row, may lose; weights have gains of order 1."""
LONG = {"seq_len": 300, "k_max": 4, "budgets": [2, 4]}
"""Longer than what the filters themselves are used for, so that there is a realization, and no power of two."""
MODELS = {"language model": BYTES, "classifier": KEYWORDS}


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("lowerings") / "model"
    return open_checkpoint(make_checkpoint(folder, MODELS[request.param], None, smooth=True, **LONG))


def labels(checkpoint: Checkpoint, budget: int, name: str | None) -> list[str]:
    family = family_of(checkpoint)
    problem = family.problem(family.slice(checkpoint, budget), Plan(300, 1))
    return [lowering.label.split("/")[0] for lowering in lawful_lowerings(problem, name)]


@pytest.mark.parametrize("budget", [1, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_every_lowering_is_the_reference(tmp_path: Path, checkpoint: Checkpoint, name: str, budget: int) -> None:
    used: list[Lowering] = []

    def planner(problem: Any) -> Lowering:
        used.append(lawful_lowerings(problem, name)[0])
        return used[-1]

    engine = prepare(tmp_path, checkpoint, [budget], 1, BACKENDS["onnxruntime"], planner).sequence(budget)
    feed = family_of(checkpoint).example_inputs(checkpoint, 1, 7)
    (logits,) = OrtSession(tmp_path, engine, threads=1).run(feed).values()
    config = EsSsmConfig.model_validate(checkpoint.config)
    inputs = feed["tokens" if "tokens" in feed else "features"]
    expected = forward(config, checkpoint.tensors, inputs, feed.get("lengths"), budget)
    assert [lowering.label.split("/")[0] for lowering in used] == [name]
    assert np.linalg.norm(logits - expected) / np.linalg.norm(expected) <= SEQUENCE


def test_the_reference_of_what_others_do_is_only_there_by_name(checkpoint: Checkpoint) -> None:
    assert set(labels(checkpoint, 4, None)) == {"toeplitz", "chunked", "monarch"}
    assert labels(checkpoint, 4, "dft") == ["dft"]


def test_filters_without_a_realization_have_two_lowerings(tmp_path: Path) -> None:
    noise = open_checkpoint(make_checkpoint(tmp_path / "model", BYTES, None, **{**LONG, "seq_len": 1024}))
    problem = family_of(noise).problem(noise, Plan(1024, 1))
    found = [lowering.label.split("/")[0] for lowering in lawful_lowerings(problem)]
    assert found == ["monarch", "monarch", "toeplitz"]  # in the order of their estimates
    with pytest.raises(BuildError):
        lawful_lowerings(problem, "chunked")


def test_an_unknown_lowering_is_named_with_the_known_ones(checkpoint: Checkpoint) -> None:
    with pytest.raises(BuildError, match="toeplitz, chunked, monarch, dft"):
        labels(checkpoint, 4, "winograd")
