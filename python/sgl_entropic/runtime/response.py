"""Readings of one request in the front process: chunks come in from the scheduler, documents go out to clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

INFO_KEY = "entropic"
TOKEN_FIELDS = (
    "entropy_nats",
    "surprisal_nats",
    "sampled_entropy_nats",
    "temperature",
    "saturated",
    "min_p",
    "cut_entropy_nats",
    "keep_ratio",
    "gravity",
    "energy",
    "free_energy",
    "tier",
)
REQUEST_FIELDS = ("target_entropy_nats",)
PROMPT_FIELDS = ("prompt_surprisal_nats", "prompt_entropy_nats")
END_FIELDS = ("summary", "scheduling", "attention")
"""Known when a request has finished; the others come with the summary."""


@dataclass(slots=True)
class ResponseReadings:
    """Accumulates the chunks of one request.

    Attributes:
        tokens: per-token lists in output order; empty unless the client asked.
        prompt: prompt lists, once they are known; empty unless the client asked.
        request: what is the same for all its tokens.
        summary: known when the request has finished.
        scheduling: likewise, where the server schedules by entropy.
        attention: likewise, where its decode steps may leave out parts of the context.
    """

    tokens: dict[str, list[Any]] = field(default_factory=dict)
    prompt: dict[str, list[float | None]] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    scheduling: dict[str, Any] | None = None
    attention: dict[str, Any] | None = None

    def add(self, chunk: dict[str, Any]) -> None:
        """Take in a chunk of the scheduler."""
        for name in TOKEN_FIELDS:
            if name in chunk:
                self.tokens.setdefault(name, []).extend(chunk[name])
        for name in PROMPT_FIELDS:
            if name in chunk:
                self.prompt[name] = chunk[name]
        self.request.update({name: chunk[name] for name in REQUEST_FIELDS if name in chunk})
        self.summary = chunk.get("summary", self.summary)
        self.scheduling = chunk.get("scheduling", self.scheduling)
        self.attention = chunk.get("attention", self.attention)

    def __len__(self) -> int:
        """Output tokens with readings so far."""
        return len(self.tokens.get(TOKEN_FIELDS[0], ()))

    def document(
        self, *, start: int = 0, with_prompt: bool = True, with_summary: bool = True
    ) -> dict[str, Any]:
        """The public form; ``start`` leaves out the output tokens before it (a stream's earlier chunks)."""
        document: dict[str, Any] = {}
        if self.tokens:
            if start:
                document["output_index"] = start
            document.update({name: values[start:] for name, values in self.tokens.items()})
            document.update(self.request)
        if with_prompt:
            document.update(self.prompt)
        if with_summary and self.summary is not None:
            document["summary"] = self.summary
            if self.scheduling is not None:
                document["scheduling"] = self.scheduling
            if self.attention is not None:
                document["attention"] = self.attention
        return document
