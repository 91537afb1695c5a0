"""config.json of an ES-SSM checkpoint."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, PositiveInt, field_validator, model_validator

from essm_deploy.schema import StrictModel

POOLED_TASKS = ("audio-classification", "sequence-classification")


class BankConfig(StrictModel):
    """Where the filter bank came from: `exact` ones are the Hankel eigenvectors, `embedded` ones anything else."""

    kind: Literal["exact", "embedded"]
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class EsSsmConfig(StrictModel):
    """The keys of the written format; a minor version may add some, which are ignored here."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    model_type: Literal["es_ssm"]
    format_version: str
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    intermediate_size: PositiveInt
    gate_hidden_size: PositiveInt
    vocab_size: PositiveInt | None = None
    input_size: PositiveInt | None = None
    id2label: dict[str, str] | None = None
    num_outputs: PositiveInt | None = None
    layer_norm_eps: float = Field(gt=0, lt=1)
    hidden_act: Literal["gelu"]
    seq_len: PositiveInt
    k_max: PositiveInt
    budgets: list[PositiveInt] = Field(min_length=1)
    gate: Literal["sigmoid"]
    tie_word_embeddings: bool
    overflow: Literal["window", "restart", "refuse"]
    task: Literal["audio-classification", "sequence-classification", "text-generation", "sequence-regression"]
    bank: BankConfig
    frontend: dict[str, Any] | None = None

    @field_validator("budgets")
    @classmethod
    def _ascending(cls, budgets: list[int]) -> list[int]:
        if sorted(set(budgets)) != budgets:
            raise ValueError("budgets must ascend without repeats")
        return budgets

    @model_validator(mode="after")
    def _consistent(self) -> EsSsmConfig:
        if self.budgets[-1] > self.k_max:
            raise ValueError(f"budget {self.budgets[-1]} is above k_max {self.k_max}")
        if (self.vocab_size is None) == (self.input_size is None):
            raise ValueError("exactly one of vocab_size and input_size is expected")
        if self.pooled != (self.id2label is not None):
            raise ValueError(f"task {self.task!r} {'needs' if self.pooled else 'takes no'} id2label")
        if (self.task == "sequence-regression") != (self.num_outputs is not None):
            raise ValueError(f"task {self.task!r} {'takes no' if self.num_outputs else 'needs'} num_outputs")
        if not self.pooled and self.num_outputs is None and self.vocab_size is None:
            raise ValueError(f"task {self.task!r} needs vocab_size")
        if (self.pooled or self.num_outputs) and self.tie_word_embeddings:
            raise ValueError("a head of its own cannot be tied to word embeddings")
        if self.tie_word_embeddings and self.vocab_size is None:
            raise ValueError("tie_word_embeddings needs vocab_size")
        if self.overflow == "restart" and self.seq_len % 2:
            raise ValueError(f"overflow 'restart' cuts history in halves, and seq_len {self.seq_len} is odd")
        if self.id2label is not None and list(self.id2label) != [str(i) for i in range(len(self.id2label))]:
            raise ValueError("id2label must count its keys from '0' upwards")
        return self

    @property
    def pooled(self) -> bool:
        """Whether the head reads the mean over time (a classifier) instead of every position."""
        return self.task in POOLED_TASKS

    @property
    def generative(self) -> bool:
        """Whether the model is run token by token, each call waiting for the last one's answer."""
        return self.task == "text-generation"

    @property
    def output_size(self) -> int:
        """Classes of a classifier, numbers at each position of a regression, or the vocabulary."""
        if self.id2label is not None:
            return len(self.id2label)
        if self.num_outputs is not None:
            return self.num_outputs
        assert self.vocab_size is not None  # a model without either predicts its own vocabulary (checked above)
        return self.vocab_size
