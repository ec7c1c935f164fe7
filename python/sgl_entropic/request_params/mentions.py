"""A look at the bytes of a body: may one of its keys mean us? Most requests do not, and are then not even parsed."""

from __future__ import annotations

import re

# Of every name, pieces that no single slip of the pen destroys together; and the escape that can hide any letter.
_PIECES = (
    "entrop",
    "tropy",
    "surpris",
    "return[-_ ]*[eps]",
    "mmary",
    "target",
    "nats",
    "g[-_ ]*mode",
    "gain",
    "g[-_ ]*a",
    "tuat",
    "scale",
    "m(?:in|ax)[-_ ]*te",
    "attention",
    "prun",
    "policy",
    "keep",
    "ratio",
    "client[-_ ]*id",
    "custom",
    r"\\u",
)
# Keys only: a quote, as many bytes as a name of ours has, also with all its letters escaped, a quote and a colon. Within a
# text a quote has a backslash before it.
_KEY = re.compile(rf'"(?<!\\")(?=[^"]{{6,160}}+(?<!\\)"\s*+:)[^"]*?(?:{"|".join(_PIECES)})'.encode())


def may_mention(body: bytes) -> bool:
    """Whether a JSON ``body`` may have a key, at any depth, that means us; false is certain, true is not."""
    return _KEY.search(body.lower()) is not None
