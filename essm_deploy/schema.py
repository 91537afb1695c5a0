"""Strict pydantic models whose complaint is one line: file, key, what was read, what is allowed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from essm_deploy.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MAX_TOML_BYTES = 2**20


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


def read_bounded(path: Path, most: int, expected: str, error: type[UsageError]) -> bytes:
    """The content of a file of at most `most` bytes; raise `error` that names the file and says what was `expected`."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror}); expected {expected}") from None
    if len(content) > most:
        raise error(f"{path}: larger than {most} bytes; expected {expected}")
    return content


def read_toml(path: Path, expected: str, error: type[UsageError]) -> dict[str, Any]:
    """The document of a TOML file of at most 1 MiB; raise `error` that names the file and says what was `expected`."""
    content = read_bounded(path, _MAX_TOML_BYTES, expected, error)
    try:
        document: dict[str, Any] = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: not TOML ({str(problem).splitlines()[0]})") from None
    return document


def _first_problem(model: type[BaseModel], problem: ValidationError) -> str:
    first = problem.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "document"
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}; allowed: {', '.join(sorted(_model_at(model, first['loc'][:-1]).model_fields))}"
    if first["type"] == "missing":
        return f"key {key!r} is missing"
    message = first["msg"].removeprefix("Value error, ")
    return f"{key}: {message[0].lower()}{message[1:]}, read {_shown(first['input'])}"


def _model_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """The model of the table at `location`; `model` itself where the table is not one of ours."""
    for part in location:
        field = model.model_fields.get(str(part))
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), model)
    return model


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
