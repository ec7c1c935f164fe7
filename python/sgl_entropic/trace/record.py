"""One record per scheduler step, versioned, as JSON."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal

import orjson

SCHEMA_VERSION = 1

StepKind = Literal["decode", "extend", "mixed"]


class RecordVersionError(ValueError):
    """A record of a version that this reader does not know."""


@dataclass(frozen=True, slots=True)
class RowRecord:
    """One committed token of one request.

    Attributes:
        rid: request id, as in ``meta_info.id``.
        output_index: position among the request's output tokens.
        token_id: the token.
        entropy_nats: of the model's own distribution; ``None`` where undefined, as below.
        varentropy: variance of the surprisal under it, nats squared.
        surprisal_nats: of the token.
        sampled_entropy_nats: of the distribution that was sampled from.
        target_entropy_nats: entropy to sample at; ``None``, like all below, for a request that is not steered.
        temperature: at which the token was drawn.
        saturated: whether the target was out of reach.
        min_p: threshold at which it was drawn, if that is what is steered.
        cut_entropy_nats: entropy of what the threshold left.
        scheduling: terms of the score that the request was admitted with, at its first token after that.
        keep_ratio: share of the context that the token's step read; ``None`` for a request that always reads all.
        gravity: how much the text is on its way, and with ``energy``, ``free_energy`` and ``tier`` ``None`` where that is not
            asked.
        energy: distance from the running centre of the text.
        free_energy: that and the entropy.
        tier: ``strong``, ``medium`` or ``weak``.
    """

    rid: str
    output_index: int
    token_id: int
    entropy_nats: float | None
    varentropy: float | None
    surprisal_nats: float | None
    sampled_entropy_nats: float | None
    target_entropy_nats: float | None = None
    temperature: float | None = None
    saturated: bool | None = None
    min_p: float | None = None
    cut_entropy_nats: float | None = None
    scheduling: dict[str, float] | None = None
    keep_ratio: float | None = None
    gravity: float | None = None
    energy: float | None = None
    free_energy: float | None = None
    tier: str | None = None


_ROW_FIELDS = tuple(field.name for field in fields(RowRecord) if field.default is MISSING)
_LATER_FIELDS = tuple(field.name for field in fields(RowRecord) if field.default is not MISSING)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step measured.

    Attributes:
        step: number of the step since the process started.
        time_ns: wall clock when the step's results reached the host.
        kind: whether the batch decoded, prefilled, or did both.
        rows: the tokens that count; discarded ones are left out.
    """

    step: int
    time_ns: int
    kind: StepKind
    rows: tuple[RowRecord, ...]


def encode(record: StepRecord, **more: Any) -> bytes:
    """JSON of ``record`` in one line without its end; ``more`` adds fields. NaN and infinities become null."""
    content = {
        "schema": SCHEMA_VERSION,
        **more,
        "step": record.step,
        "time_ns": record.time_ns,
        "kind": record.kind,
        "rows": record.rows,
    }
    try:
        return orjson.dumps(content)
    except orjson.JSONEncodeError:  # a request id, chosen by a client, that is no Unicode text
        return orjson.dumps({**content, "rows": [_with_printable_rid(row) for row in record.rows]})


def decode(line: bytes | str) -> StepRecord:
    """The record that :func:`encode` wrote; fields that are not of the record are ignored.

    Raises:
        RecordVersionError: the record's version is not known here.
        ValueError: it is no step record.
    """
    content = orjson.loads(line)
    if not isinstance(content, dict):
        raise ValueError(f"not a step record: {type(content).__name__}")  # noqa: TRY004 -- it is about the content of a line
    version = content.get("schema")
    if version != SCHEMA_VERSION:
        raise RecordVersionError(f"step record of schema {version!r}; this reader knows {SCHEMA_VERSION}")
    if "rows" not in content:
        raise ValueError("not a step record (a header line?)")
    try:
        rows = tuple(
            RowRecord(*(row[name] for name in _ROW_FIELDS), *(row.get(name) for name in _LATER_FIELDS))
            for row in content["rows"]
        )
        return StepRecord(content["step"], content["time_ns"], content["kind"], rows)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a step record: {error!r}") from None


def _with_printable_rid(row: RowRecord) -> RowRecord:
    return replace(row, rid=row.rid.encode("utf-8", "backslashreplace").decode())
