"""Every exception of the package.

::

    EntropicError
    ├── ConfigError            a YAML key, flag or environment value that is not accepted (also a ValueError)
    ├── RequestParameterError  a per-request parameter that is not accepted: HTTP 400 (also a ValueError)
    ├── UnsupportedError       a combination refused at start; names the flag to change
    ├── SeamError              a touch on SGLang that is dead or has moved
    └── ModelFetchError        the default model could not be fetched, verified or converted

Messages name the knob, the value that was given and the accepted range.
"""

from __future__ import annotations


class EntropicError(Exception):
    """Base of every error that sgl_entropic raises on purpose."""


class ConfigError(EntropicError, ValueError):
    """A configuration key or flag holds a value that is not accepted."""


class RequestParameterError(EntropicError, ValueError):
    """A per-request parameter is unknown, malformed or out of range.

    It is a ``ValueError`` because SGLang's routes answer that with HTTP 400.
    """


class UnsupportedError(EntropicError):
    """A combination of flags, model and machine that is refused before weights load."""


class SeamError(EntropicError):
    """A touch on SGLang is missing, has another signature, or never came alive."""


class ModelFetchError(EntropicError):
    """The default model could not be fetched, verified or converted."""
