"""Feature extraction in numpy alone: what a clip becomes before a model sees it, in training and on the device alike."""

from essm_deploy.frontend.audio import read_audio
from essm_deploy.frontend.logmel import LogMel, mel_triangles

__all__ = ["LogMel", "mel_triangles", "read_audio"]
