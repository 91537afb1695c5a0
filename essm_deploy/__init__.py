"""Compile an elastic sequence model to the largest budget that a device can afford."""

__version__ = "0.1.0"
