"""Model families: one package each, found by the `model_type` of a checkpoint."""

from __future__ import annotations

import os

from essm_deploy.checkpoint import Checkpoint, read_checkpoint, validate_tensors
from essm_deploy.errors import CheckpointError
from essm_deploy.families.base import Family
from essm_deploy.families.es_ssm import FAMILY as ES_SSM

FAMILIES: dict[str, Family] = {family.model_type: family for family in (ES_SSM,)}


def family_of(checkpoint: Checkpoint) -> Family:
    """The family of a checkpoint; CheckpointError names the known ones."""
    model_type = checkpoint.config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"{checkpoint.path / 'config.json'}: model_type is {model_type!r}; known: {known}")
    return family


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint and hold it to what its family promises: config, names, shapes, dtypes, finite values, bank hash."""
    checkpoint = read_checkpoint(path)
    validate_tensors(checkpoint, family_of(checkpoint).tensor_table(checkpoint))
    return checkpoint
