"""The Hankel filter bank, its state-space realization, and the lowerings of the causal convolution."""
