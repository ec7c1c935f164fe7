"""Short forms of answers that a grammar holds, and whether an answer has its form."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import jsonschema

MOST_TOKENS = 40
"""The limit of an answer; a form needs less, unless the model fills it with spaces."""


@dataclass(frozen=True, slots=True)
class Form:
    """A regular expression or a JSON schema.

    Attributes:
        regex: for the whole answer, empty with a schema.
        schema: for the document, as JSON; empty with a regular expression.
    """

    regex: str = ""
    schema: str = ""

    def sampling(self) -> dict[str, Any]:
        """The parameter of a request."""
        return {"regex": self.regex} if self.regex else {"json_schema": self.schema}

    def holds(self, text: str) -> bool:
        """Whether ``text`` has the form."""
        if self.regex:
            return re.fullmatch(self.regex, text) is not None
        try:
            jsonschema.validate(json.loads(text), json.loads(self.schema))
        except (ValueError, jsonschema.ValidationError):
            return False
        return True


def _schema(**properties: Any) -> str:
    content = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return json.dumps(content)


FORMS = (
    Form(regex=r'\{"verdict": "(yes|no|unsure)", "score": [0-9]{2}\}'),
    Form(schema=_schema(label={"enum": ["news", "sport", "trade"]}, urgent={"type": "boolean"})),
    Form(regex=r"[A-Z]{2}-[0-9]{4}"),
    Form(schema=_schema(action={"enum": ["call", "wait", "stop"]}, to={"enum": ["desk", "bank", "shop"]})),
)
