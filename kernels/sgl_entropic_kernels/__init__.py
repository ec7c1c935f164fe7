"""Kernels of sgl_entropic and their float64 definitions; imports nothing of the serving package."""
