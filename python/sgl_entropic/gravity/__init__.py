"""Narrative gravity: how much a text is already on its way, and what follows from that; scalar rules, no tensors."""
