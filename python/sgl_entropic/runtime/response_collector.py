"""Carries readings from the token stream to the HTTP response of one request, on the OpenAI routes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sgl_entropic.request_params import RequestParams
from sgl_entropic.runtime.response import END_FIELDS, INFO_KEY, PROMPT_FIELDS, REQUEST_FIELDS, TOKEN_FIELDS

SCOPE_KEY = "sgl_entropic"


@dataclass(slots=True)
class ResponseCollector:
    """Lives in the ASGI scope of one HTTP request.

    Attributes:
        params: what the client asked for at the top level of the body.
        documents: latest ``meta_info`` document by choice index.
        shown: output tokens already shown to the client, by choice index (streams).
        prompts_shown: choices whose prompt readings were shown to the client.
    """

    params: RequestParams
    documents: dict[int, dict[str, Any]] = field(default_factory=dict)
    shown: dict[int, int] = field(default_factory=dict)
    prompts_shown: set[int] = field(default_factory=set)

    def note(self, response: Any) -> None:
        """Take in what ``generate_request`` yields: one response, or the list of a batch."""
        if isinstance(response, list):
            for index, one in enumerate(response):
                self._note_one(index, one)
        elif isinstance(response, dict):
            self._note_one(response.get("index", 0), response)

    def _note_one(self, index: int, response: dict[str, Any]) -> None:
        document = response.get("meta_info", {}).get(INFO_KEY)
        if document is None:
            return
        if "output_index" in document:
            # The server streams increments; keep the whole, so that a chunk the client never sees loses nothing.
            known = self.documents.get(index, {})
            grown = {name: known.get(name, []) + document[name] for name in TOKEN_FIELDS if name in document}
            document = {**known, **document, **grown}
            del document["output_index"]
        self.documents[index] = document

    def whole(self, index: int) -> dict[str, Any] | None:
        """Everything known of choice ``index``."""
        return self.documents.get(index)

    def increment(self, index: int, *, finished: bool) -> dict[str, Any] | None:
        """What is new for choice ``index`` since the last call; ``None`` when nothing is."""
        document = self.documents.get(index)
        if document is None:
            return None
        start = self.shown.get(index, 0)
        end = len(document.get(TOKEN_FIELDS[0], ()))
        news = {name: document[name][start:] for name in TOKEN_FIELDS if name in document and end > start}
        if news:
            news["output_index"] = start
            news.update({name: document[name] for name in REQUEST_FIELDS if name in document})
        if index not in self.prompts_shown and (
            prompt := {k: v for k, v in document.items() if k in PROMPT_FIELDS}
        ):
            news.update(prompt)
            self.prompts_shown.add(index)
        if finished and "summary" in document:
            news.update({name: document[name] for name in END_FIELDS if name in document})
        self.shown[index] = end
        return news or None


def collector_of(request: Any) -> ResponseCollector | None:
    """The collector of a Starlette request, or ``None`` (offline engine, routes that do not carry one)."""
    scope = getattr(request, "scope", None)
    collector = scope.get(SCOPE_KEY) if isinstance(scope, dict) else None
    return collector if isinstance(collector, ResponseCollector) else None
