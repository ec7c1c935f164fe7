"""sgl_entropic: a model's uncertainty as the signal that steers an SGLang server.

Importing this package loads neither torch nor SGLang; the parts that need them import them themselves.
"""

__version__ = "0.1.0"
