"""Logits to uncertainty: pure functions of one step's distribution.

``row_statistics``  exact entropy, varentropy and surprisal from whole rows (torch)
``truncated``       entropy and its bounds from the k largest logits (torch)
``from_logprobs``   the same bounds from any OpenAI server's ``top_logprobs`` (standard library only)

This module imports none of them, so that a client of ``from_logprobs`` does not load torch.
"""
