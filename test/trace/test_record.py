"""Step records survive their JSON form, and unknown versions are refused."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.trace.record import RecordVersionError, RowRecord, StepRecord, decode, encode

nats = st.none() | st.floats(0, 1e6)
rows = st.builds(
    RowRecord,
    rid=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    output_index=st.integers(0, 2**31),
    token_id=st.integers(0, 2**31),
    entropy_nats=nats,
    varentropy=nats,
    surprisal_nats=nats,
    sampled_entropy_nats=nats,
)
records = st.builds(
    StepRecord,
    step=st.integers(1, 2**53),
    time_ns=st.integers(0, 2**62),
    kind=st.sampled_from(["decode", "extend", "mixed"]),
    rows=st.lists(rows, max_size=4).map(tuple),
)


@given(records)
def test_round_trip(record: StepRecord) -> None:
    """Decoding gives back what was encoded."""
    assert decode(encode(record)) == record


@given(records)
def test_any_json_reader_can_read_it(record: StepRecord) -> None:
    """One line, plain JSON, every row with its names."""
    line = encode(record, sequence=7)
    assert b"\n" not in line
    content = json.loads(line)
    assert content["sequence"] == 7
    assert [row["rid"] for row in content["rows"]] == [row.rid for row in record.rows]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_null(value: float) -> None:
    """NaN and infinities do not make a line that other readers refuse."""
    record = StepRecord(1, 2, "decode", (RowRecord("r", 0, 1, value, value, value, value),))
    assert json.loads(encode(record))["rows"][0]["entropy_nats"] is None


def test_a_newer_version_is_refused_by_name() -> None:
    """A reader says which version it met."""
    line = json.dumps({"schema": 2, "steps": {}})  # whatever a newer version looks like
    with pytest.raises(RecordVersionError, match="schema 2"):
        decode(line)


def test_fields_of_a_later_release_are_ignored() -> None:
    """More may be written under the same version."""
    record = StepRecord(1, 2, "decode", (RowRecord("r", 0, 1, 0.5, 0.1, 0.2, 0.4),))
    content = json.loads(encode(record))
    content["more"] = content["rows"][0]["more"] = 1
    assert decode(json.dumps(content)) == record


def test_a_request_id_that_is_no_text_is_spelled_out() -> None:
    """JSON is UTF-8; a lone surrogate of a client's id has no form in it."""
    record = StepRecord(1, 2, "decode", (RowRecord("a\ud800", 0, 1, 0.5, 0.1, 0.2, 0.4),))
    assert decode(encode(record)).rows[0].rid == "a\\ud800"


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        '{"kind": "header", "schema": 1}',
        "nonsense",
        '{"schema": 1, "rows": []}',
        '{"schema": 1, "step": 1, "time_ns": 1, "kind": "decode", "rows": [{}]}',
        '{"schema": 1, "step": 1, "time_ns": 1, "kind": "decode", "rows": 1}',
        b"\xff",
    ],
)
def test_what_is_no_record_is_refused(line: str | bytes) -> None:
    """A header line or anything else is a ValueError."""
    with pytest.raises(ValueError, match=r".+"):
        decode(line)
