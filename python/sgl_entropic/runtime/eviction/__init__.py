"""Eviction of SGLang's prefix cache by :mod:`sgl_entropic.eviction`, in the scheduler process."""
