"""The one layer that imports SGLang: decisions and signals meet the server here.

Everything that touches SGLang is a row in :mod:`sgl_entropic.runtime.seams`.
"""
