"""Sampling at a target entropy: the controllers as tensors of rows, without SGLang."""
