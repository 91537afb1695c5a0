"""Logits as labels with probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from essm_deploy.errors import EssmError
from essm_deploy.runtime.tensors import Array


def ranked(logits: Array, labels: Sequence[str]) -> list[dict[str, Any]]:
    """[{"label": str, "score": float}], best first, the scores being the softmax of `logits` [labels].

    Raises EssmError unless there is one finite logit for each label.
    """
    values = logits.astype(np.float64)
    if values.shape != (len(labels),) or not np.isfinite(values).all():
        raise EssmError(f"the engine gave no finite logit for each of the {len(labels)} labels: verify the bundle")
    scores = np.exp(values - values.max())
    scores /= scores.sum()
    order = np.argsort(-scores, kind="stable")
    return [{"label": labels[index], "score": float(scores[index])} for index in order]
