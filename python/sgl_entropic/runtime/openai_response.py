"""Adds ``choices[i].entropic`` to OpenAI responses; the official client keeps fields that it does not know."""

from __future__ import annotations

from typing import Any

import orjson

from sgl_entropic.runtime.response_collector import ResponseCollector

FIELD = "entropic"


class JsonRewriter:
    """One JSON document, rewritten when it is complete."""

    def __init__(self, collector: ResponseCollector) -> None:
        """Take the readings from ``collector``."""
        self._collector = collector
        self._body = bytearray()

    def feed(self, data: bytes, *, end: bool) -> bytes:
        """Take in a part of the body; the whole is returned at its end."""
        self._body += data
        if not end:
            return b""
        try:
            content = orjson.loads(bytes(self._body))
        except orjson.JSONDecodeError:
            return bytes(self._body)
        changed = False
        for choice in _choices(content):
            document = self._collector.whole(choice.get("index", 0))
            if document is not None:
                choice[FIELD] = document
                changed = True
        return orjson.dumps(content) if changed else bytes(self._body)


class SseRewriter:
    """A stream of server-sent events; each is passed on as soon as it is complete."""

    def __init__(self, collector: ResponseCollector) -> None:
        """Take the readings from ``collector``."""
        self._collector = collector
        self._rest = b""

    def feed(self, data: bytes, *, end: bool) -> bytes:
        """Take in a part of the stream and return the events that are complete."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        out = b"".join(self._rewrite(event) + b"\n\n" for event in events)
        if end:
            out, self._rest = out + self._rest, b""
        return out

    def _rewrite(self, event: bytes) -> bytes:
        if not event.startswith(b"data: {"):
            return event
        try:
            content = orjson.loads(event[len(b"data: ") :])
        except orjson.JSONDecodeError:
            return event
        changed = False
        for choice in _choices(content):
            finished = choice.get("finish_reason") is not None
            document = self._collector.increment(choice.get("index", 0), finished=finished)
            if document is not None:
                choice[FIELD] = document
                changed = True
        return b"data: " + orjson.dumps(content) if changed else event


def _choices(content: Any) -> list[dict[str, Any]]:
    choices = content.get("choices") if isinstance(content, dict) else None
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
