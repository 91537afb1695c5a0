"""Strict pydantic models whose complaint is one line: file, key, what was read, what is allowed."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from essm_deploy.errors import UsageError


class StrictModel(BaseModel):
    """Immutable, unknown keys refused, no silent conversion between types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], raw: Any, where: str, error: type[UsageError]) -> Model:
    """Validate `raw` as `model`; raise `error` with the first problem, named by its key in `where`."""
    try:
        return model.model_validate(raw)
    except ValidationError as problem:
        raise error(f"{where}: {_first_problem(model, problem)}") from None


def _first_problem(model: type[BaseModel], problem: ValidationError) -> str:
    first = problem.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "document"
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}; allowed: {', '.join(sorted(model.model_fields))}"
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    message = first["msg"].removeprefix("Value error, ")
    return f"{key}: {message[0].lower()}{message[1:]}, read {_shown(first['input'])}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
