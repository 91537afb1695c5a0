"""A data set in Speech Commands' layout whose words are sine tones: small, learnable, made in a moment."""

from __future__ import annotations

from essm_train.tasks.tones import PER_WORD, tone, write_tones, write_wav

make_data_set = write_tones

__all__ = ["PER_WORD", "make_data_set", "tone", "write_wav"]
