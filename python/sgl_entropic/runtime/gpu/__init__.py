"""Attention pruning on NVIDIA GPUs: FlashInfer's paged decode reads the selected tokens only."""
