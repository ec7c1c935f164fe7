"""Documents of real JSON schemas, with the controller and at one temperature: does control cost validity?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema

from sampling_parts.client import AnswerError, posted

Row = dict[str, Any]
ASK = "Give one short example of a JSON document of this kind."


def read_schemas(path: Path, count: int) -> list[Row]:
    """The first ``count`` lines of ``{"id": ..., "schema": ...}``.

    Raises:
        ValueError: there are none.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()][:count]
    if not rows:
        raise ValueError(f"{path} holds no schemas")
    return rows


def body_of(row: Row, tokens: int, temperature: float, asked: dict[str, Any] | None) -> dict[str, Any]:
    """A request for a document of the schema of ``row``."""
    document = {"name": "document", "schema": row["schema"]}
    body: dict[str, Any] = {
        "model": "default",
        "messages": [{"role": "user", "content": ASK}],
        "max_tokens": tokens,
        "temperature": temperature,
        "return_entropy": True,
        "response_format": {"type": "json_schema", "json_schema": document},
    }
    return body if asked is None else {**body, "custom_params": {"entropic": asked}}


def outcome_of(choice: dict[str, Any], schema: dict[str, Any]) -> str:
    """``valid``, ``unlike_schema``, ``malformed`` or ``cut`` (the most tokens came before the document ended)."""
    if choice["finish_reason"] == "length":
        return "cut"
    try:
        document = json.loads(choice["message"]["content"])
    except ValueError:
        return "malformed"
    try:
        jsonschema.validate(document, schema)
    except (jsonschema.ValidationError, jsonschema.SchemaError):
        return "unlike_schema"
    return "valid"


def accepted(url: str, rows: Sequence[Row]) -> list[Row]:
    """Those whose schema the grammar engine can compile; the others are refused whoever steers.

    Raises:
        AnswerError: a request failed otherwise, or all are refused.
    """
    result = [row for row in rows if not _refused(url, row)]
    if not result:
        raise AnswerError(f"all {len(rows)} schemas are refused")
    return result


def outcomes(
    url: str,
    rows: Sequence[Row],
    tokens: int,
    temperature: float,
    asked: dict[str, Any] | None,
    clients: int,
) -> list[str]:
    """Outcome for each schema.

    Raises:
        AnswerError: any request failed.
    """
    bodies = [body_of(row, tokens, temperature, asked) for row in rows]
    contents = posted(url, "/v1/chat/completions", bodies, clients)
    return [
        outcome_of(content["choices"][0], row["schema"]) for row, content in zip(rows, contents, strict=True)
    ]


def _refused(url: str, row: Row) -> bool:
    try:
        posted(url, "/v1/chat/completions", [body_of(row, 1, 0.0, None)], 1)
    except AnswerError as error:
        if "status 4" not in str(error):
            raise
        return True
    return False
