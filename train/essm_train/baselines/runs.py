"""One run of one Transformer++ with an elastic study's recipe: trained by the same trainer, judged, kept as result.json.

What differs from the elastic run's recipe is the model, that no budget is drawn, and the learning rate. Everything else (data
order, augmentation, epochs, weight decay, average of the weights) is the same to the bit. The recipe's budgets are then the one
whose size the model has, so that logs name it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from essm_deploy.errors import InputError, UsageError
from essm_deploy.files import write_json
from essm_deploy.frontend import LogMel
from essm_train.baselines.matching import Match, match
from essm_train.baselines.transformer import HEADS, Transformer
from essm_train.device import setup_device
from essm_train.model import ModelConfig
from essm_train.settings import Settings, with_keys
from essm_train.study import Study
from essm_train.tasks import keywords
from essm_train.trainer import Run, train

RESULT = "result.json"
VARIANT = "dropout"  # of the study: the elastic model of the paper


@dataclass(frozen=True)
class Spec:
    """Which run: the budget whose size it has, its seed, its learning rate."""

    budget: int
    seed: int
    lr: float

    @property
    def name(self) -> str:
        return f"K{self.budget}-seed{self.seed}-lr{self.lr:g}"


@dataclass(frozen=True)
class Comparison:
    """An elastic study of the keyword task, and the folder of the runs that it is compared with."""

    study: Study
    folder: Path

    def __post_init__(self) -> None:
        if self.study.task != keywords.Keywords.name or VARIANT not in self.study.variants:
            raise UsageError(f"study {self.study.name}: expected one of task keywords that has a variant {VARIANT!r}")

    def elastic_recipe(self, seed: int) -> Settings:
        """What the elastic run of a seed trains with."""
        return cast(Settings, self.study.recipe(VARIANT, seed))

    @property
    def elastic_config(self) -> ModelConfig:
        """The elastic model's sizes."""
        return keywords.make_model_config(self.elastic_recipe(0), LogMel())

    @property
    def timed_recipe(self) -> dict[str, Any]:
        """The elastic recipe that times in turns belong to, as it is read back from a document."""
        recipe: dict[str, Any] = json.loads(json.dumps(self.elastic_recipe(self.study.seeds[0]).to_dict()))
        return recipe

    def match(self, budget: int) -> Match:
        """The Transformer++ of the size of a budget. UsageError for a budget that the elastic model does not have."""
        config = self.elastic_config
        if not 1 <= budget <= config.k_max:
            raise UsageError(f"budget {budget}: expected 1 to {config.k_max}, the channels of study {self.study.name}")
        return match(config, budget)

    def recipe(self, spec: Spec) -> Settings:
        """What a run trains with."""
        changes = {
            "model": {"hidden_size": self.match(spec.budget).width, "k_max": spec.budget},
            "budgets": {"trained": [spec.budget], "sampled": False, "distill": 0.0},
            "optimizer": {"lr": spec.lr},
        }
        return with_keys(self.elastic_recipe(spec.seed), changes, f"study {self.study.name}")

    def result(self, spec: Spec) -> dict[str, Any] | None:
        """What a run came to, or None where it is not complete. UsageError where it had another recipe."""
        path = self.folder / spec.name / RESULT
        if not path.is_file():
            return None
        result = read_json(path)
        if result.get("recipe") != json.loads(json.dumps(self.recipe(spec).to_dict())):
            raise UsageError(f"{path}: is of another recipe than study {self.study.name}'s; choose another folder with -o")
        return result


def run(comparison: Comparison, spec: Spec, data: Path, device: torch.device) -> dict[str, Any]:
    """The result of a run; trained only where it is not there yet, from the last saved epoch of a run that was killed."""
    done = comparison.result(spec)
    if done is not None:
        return done
    recipe, sizes = comparison.recipe(spec), comparison.match(spec.budget)
    setup_device(device, recipe.train.threads)
    task = keywords.build(recipe, data, device)
    model = make_transformer(task.model_config, sizes, spec.seed).to(device)
    where = Run(comparison.folder / spec.name)
    trained = train(model, task, recipe, where)
    accuracy = {split: round(task.evaluate(trained, split, spec.budget), 6) for split in ("val", "test")}
    result = describe(spec, sizes) | {
        "metric": task.metric,
        **accuracy,
        "samples": {split: task.samples(split) for split in accuracy},
        "step_seconds": seconds_of_steps(where.log),
        "recipe": recipe.to_dict(),
    }
    write_json(where.folder / RESULT, result)
    where.state.unlink(missing_ok=True)
    return result


def make_transformer(config: ModelConfig, sizes: Match, seed: int) -> Transformer:
    """A freshly initialised model, whose weights depend on the seed alone."""
    torch.manual_seed(seed)
    return Transformer(config, sizes.intermediate_size)


def describe(spec: Spec, sizes: Match) -> dict[str, Any]:
    """What a result says about the model."""
    return {
        "schema_version": "1.0",
        "model": "transformer++",
        "budget": spec.budget,
        "seed": spec.seed,
        "lr": spec.lr,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.intermediate_size,
        "heads": HEADS,
        "parameters": sizes.parameters,
        "elastic_parameters": sizes.target,
        "difference_percent": round(sizes.percent, 3),
    }


def seconds_of_steps(log: Path) -> float:
    """Of a run's log: what its epochs took, looks at the validation split in between included. InputError if it is none."""
    try:
        entries = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
        return round(sum(float(entry["seconds"]) for entry in entries if "seconds" in entry), 2)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{log}: expected the log of a finished training run ({error})") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. InputError where there is none."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected a JSON document ({error})") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected a JSON object, read {type(document).__name__}")
    return document
