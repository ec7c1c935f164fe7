"""Files in, trees out; and which line is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sgl_entropic.replay import surprisal
from sgl_entropic.replay.trace import NEVER, read

_LINE = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [4, 9]}


def _write(tmp_path, *rows: object) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def test_blocks_become_nodes_behind_their_prefix(tmp_path) -> None:
    later = {**_LINE, "timestamp": 2500, "hash_ids": [5, 9]}
    trace = read(_write(tmp_path, later, _LINE))
    assert [request.path for request in trace.requests] == [(0, 1), (2, 3)]
    assert trace.requests[1].at_s == 2.5
    assert trace.hash_id == (4, 9, 5, 9)
    assert trace.parent == (-1, 0, -1, 2)
    assert trace.tokens == (512, 188, 512, 188)
    assert trace.context_tokens == (0, 512, 0, 512)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("{\n", "line 2: "),
        ("[]\n", "line 2: not a JSON object"),
        ({"timestamp": 1}, "line 2: no input_length, output_length, hash_ids"),
        ({**_LINE, "timestamp": "now"}, "line 2: timestamp is 'now'"),
        ({**_LINE, "input_length": -1}, "line 2: input_length is -1"),
        ({**_LINE, "hash_ids": ["a", 2]}, "line 2: hash_ids"),
        ({**_LINE, "hash_ids": [1]}, "line 2: 1 hash_ids do not make 700 tokens"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, row, text) -> None:
    with pytest.raises(ValueError, match=text):
        read(_write(tmp_path, _LINE, row))


def test_an_empty_file_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="holds no request"):
        read(_write(tmp_path))


def test_next_uses_look_ahead(trace_of) -> None:
    assert trace_of([1, 2], [1], [1, 2]).next_uses() == [[1, 2], [2], [NEVER, NEVER]]


def test_surprisal_belongs_to_the_id_and_the_placebo_moves_it(trace_of, tmp_path) -> None:
    trace = trace_of([1, 2], [3, 2])
    drawn = surprisal.synthetic(trace, 7)
    assert drawn[1] == drawn[3]
    assert np.array_equal(drawn, surprisal.synthetic(trace, 7))
    assert sorted(surprisal.shuffled(drawn, 1)) == sorted(drawn)
    path = tmp_path / "surprisal.jsonl"
    path.write_text('{"hash_id": 2, "surprisal_nats": 1.5}\n')
    assert np.array_equal(surprisal.read(path, trace), [np.nan, 1.5, np.nan, 1.5], equal_nan=True)
    path.write_text('{"hash_id": 2, "surprisal_nats": 1.5}\n{"hash_id": 2}\n')
    with pytest.raises(ValueError, match="line 2"):
        surprisal.read(path, trace)
