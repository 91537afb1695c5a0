"""Lowerings of the causal convolution: ways to spell it in operators that every runtime can run fast."""
