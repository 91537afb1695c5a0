"""Recipes for tests: the packaged one of a task, cut to a smoke run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from essm_train.registry import TASKS
from essm_train.settings import load_recipe


def smoke_recipe(name: str, **data: Any) -> Any:
    """The recipe that --smoke trains with; `data` replaces keys of its [data]."""
    module = TASKS[name].load()
    recipe = module.smoke(load_recipe(module.Recipe, name))
    return replace(recipe, data=replace(recipe.data, **data)) if data else recipe
