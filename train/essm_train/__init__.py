"""Training of elastic spectral state-space models: one model, trained so that every budget of channels is a prefix of it."""

import os

# One BLAS thread under numpy: its batches are small, and two threads that wait for each other on a busy machine cost 5x.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
