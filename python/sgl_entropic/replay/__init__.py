"""Replay of a request trace through a prefix cache, without a server: what an eviction policy is worth.

``python -m sgl_entropic.replay TRACE``
"""
