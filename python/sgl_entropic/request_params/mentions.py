"""A look at the bytes of a long body: images and lists of token ids need not be parsed to see that no key means us."""

from __future__ import annotations

from sgl_entropic.request_params.spelling import LONGEST, means_us

# A body with more quotes than one in so many bytes is parsed as fast as it is looked through.
_BYTES_PER_QUOTE = 4096
# Bytes of the longest key that may mean us: each of its characters may be written as two escapes of six bytes.
_MOST_BYTES = 12 * LONGEST


def may_mention(body: bytes) -> bool:
    """Whether a JSON ``body`` may have a key, at any depth, that means us; false is certain, true is not.

    No name of ours has a quote in it, so each stands whole between two quotes.
    """
    if b"\0" in body:  # UTF-16 or UTF-32, which JSON may be in
        return True
    start = 0
    for _ in range(len(body) // _BYTES_PER_QUOTE):
        end = body.find(b'"', start)
        if end < 0:
            return False
        piece = body[start:end] if end - start <= _MOST_BYTES else b""
        # Escapes other than by number stand for no letter, and lengthen the key.
        if b"\\u" in piece or means_us(piece.replace(b"\\", b"").decode("utf-8", "ignore")):
            return True
        start = end + 1
    return True
