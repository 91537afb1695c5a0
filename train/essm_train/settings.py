"""What a recipe may say: the keys of configs/*.toml as frozen dataclasses. An unknown key is an error, never ignored."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from essm_deploy.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


# The keys of the common sections, which every packaged recipe spells out and explains. The values here are those of the paper.


@dataclass(frozen=True)
class ModelSettings:
    hidden_size: int
    num_hidden_layers: int
    k_max: int
    dropout: float
    drop_path: float
    gate: str = "adaptive"


@dataclass(frozen=True)
class BudgetSettings:
    trained: tuple[int, ...]
    warmup_epochs: int
    n_full: int
    sampled: bool = True
    draw_per: str = "step"
    distill: float = 0.0


@dataclass(frozen=True)
class OptimizerSettings:
    lr: float
    weight_decay: float
    warmup_fraction: float
    floor: float
    clip: float


@dataclass(frozen=True)
class TrainSettings:
    epochs: int
    batch_size: int
    label_smoothing: float
    ema: float
    eval_every: int
    save_every: int
    threads: int
    seed: int
    accumulate: int = 1
    precision: str = "auto"
    convolution: str = "auto"
    checkpointing: bool = False
    compile: bool = False


CHOICES = {
    "model.gate": ("adaptive", "static", "uniform"),
    "budgets.draw_per": ("step", "micro_batch"),
    "train.precision": ("auto", "float32", "bfloat16"),
    "train.convolution": ("auto", "toeplitz", "chunked", "fft"),
}


@dataclass(frozen=True)
class AugmentSettings:
    speed: float
    shift_ms: float
    gain_db: float
    noise_chance: float
    noise_db: tuple[float, ...]
    warp: float
    time_masks: int
    time_width: int
    band_masks: int
    band_width: int
    mixup: float


@dataclass(frozen=True)
class TextSettings:
    seq_len: int
    short_len: int
    short_share: float
    interval: int
    val_bytes: int


Recipe = TypeVar("Recipe", bound="CommonSettings")


@dataclass(frozen=True)
class CommonSettings:
    """What the trainer reads of any recipe."""

    model: ModelSettings
    budgets: BudgetSettings
    optimizer: OptimizerSettings
    train: TrainSettings

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def with_train(self: Recipe, **changes: Any) -> Recipe:
        """A copy with some keys of [train] replaced; None leaves a key as it is."""
        given = {key: value for key, value in changes.items() if value is not None}
        return dataclasses.replace(self, train=dataclasses.replace(self.train, **given))


@dataclass(frozen=True)
class Settings(CommonSettings):
    """The whole recipe of the keyword spotter. Each section's keys are explained in configs/keywords.toml."""

    augment: AugmentSettings


@dataclass(frozen=True)
class ByteSettings(CommonSettings):
    """The whole recipe of the byte-level language model. Each section's keys are explained in configs/bytes.toml."""

    text: TextSettings


def load_settings(name: str, override: str | Path | None = None) -> Settings:
    """The packaged recipe `name`, with the keys of the TOML file `override` on top. UsageError where that file is wrong."""
    return load_recipe(Settings, name, override)


def load_recipe(kind: type[Recipe], name: str, override: str | Path | None = None) -> Recipe:
    """The same for a recipe of any kind. `override` is a file, or the name of a packaged variant of the recipe."""
    document = tomllib.loads(packaged(name).read_text("utf-8"))
    if override is not None:
        _merge(document, read_toml(_source(name, override)), str(override))
    sections = get_type_hints(kind)
    recipe = kind(**{section: _section(section, sections[section], document[section]) for section in sections})
    check_common(recipe)
    return recipe


def packaged(name: str) -> Path:
    """The file of a packaged recipe or variant."""
    return Path(str(resources.files("essm_train") / "configs" / f"{name}.toml"))


def variants(name: str) -> list[str]:
    """The packaged variants of a recipe: what --config takes beside a path."""
    return sorted(path.stem.removeprefix(f"{name}-") for path in packaged(name).parent.glob(f"{name}-*.toml"))


def with_keys(recipe: Recipe, changes: dict[str, Any], origin: str) -> Recipe:
    """A copy with the keys of `changes` (sections of keys, as in a TOML file) replaced. UsageError where they are wrong."""
    document = recipe.to_dict()
    _merge(document, changes, origin)
    sections = get_type_hints(type(recipe))
    changed = type(recipe)(**{name: _section(name, sections[name], _plain(document[name])) for name in sections})
    check_common(changed)
    return changed


def _plain(section: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in section.items()}


def _source(name: str, override: str | Path) -> Path:
    given = Path(override)
    return packaged(f"{name}-{override}") if not given.exists() and str(override) in variants(name) else given


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file. UsageError where it cannot be read."""
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        return document
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: not a readable TOML file ({error})") from error


def _merge(document: dict[str, Any], changes: dict[str, Any], origin: str) -> None:
    for section, values in changes.items():
        if section not in document or not isinstance(values, dict):
            raise UsageError(f"{origin}: unknown section [{section}]; allowed are {', '.join(document)}")
        for key, value in values.items():
            if key not in document[section]:
                raise UsageError(f"{origin}: unknown key {section}.{key}; allowed are {', '.join(document[section])}")
            document[section][key] = value


def _section(section: str, kind: Any, values: dict[str, Any]) -> Any:
    hints = get_type_hints(kind)
    return kind(**{key: _typed(f"{section}.{key}", value, str(hints[key])) for key, value in values.items()})


def _typed(key: str, value: Any, hint: str) -> Any:
    """A TOML value as the type that the recipe's dataclass names: bool, str, int, float, or a tuple of one of the last two."""
    if "tuple" in hint:
        if not isinstance(value, list):
            raise UsageError(f"recipe key {key} is {value!r}; expected a list")
        return tuple(_typed(key, item, "int" if "int" in hint else "float") for item in value)
    for name, kind, words in (("bool", bool, "true or false"), ("str", str, "a string")):
        if name in hint:
            if not isinstance(value, kind):
                raise UsageError(f"recipe key {key} is {value!r}; expected {words}")
            return value
    wanted = int if "int" in hint else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise UsageError(f"recipe key {key} is {value!r}; expected {'an integer' if wanted is int else 'a number'}")
    return value if wanted is int else float(value)


def check_common(settings: CommonSettings) -> None:
    """UsageError where values of the common sections do not fit together."""
    trained, train = settings.budgets.trained, settings.train
    if not trained or list(trained) != sorted(set(trained)) or trained[0] < 1 or trained[-1] != settings.model.k_max:
        raise UsageError(
            f"budgets.trained is {list(trained)}; expected ascending budgets that end with k_max {settings.model.k_max}"
        )
    if isinstance(settings, Settings) and len(settings.augment.noise_db) != 2:
        raise UsageError(f"augment.noise_db is {list(settings.augment.noise_db)}; expected [lowest, highest]")
    for key in ("epochs", "batch_size", "eval_every", "save_every", "threads", "accumulate"):
        if getattr(train, key) < 1:
            raise UsageError(f"train.{key} is {getattr(train, key)}; expected 1 or more")
    if settings.budgets.n_full < 0:
        raise UsageError(f"budgets.n_full is {settings.budgets.n_full}; expected 1 or more, or 0 for never")
    if not 0.0 <= settings.budgets.distill <= 1.0:
        raise UsageError(f"budgets.distill is {settings.budgets.distill}; expected 0 to 1")
    for key, allowed in CHOICES.items():
        section, name = key.split(".")
        if getattr(getattr(settings, section), name) not in allowed:
            value = getattr(getattr(settings, section), name)
            raise UsageError(f"{key} is {value!r}; expected {', '.join(allowed[:-1])} or {allowed[-1]}")
