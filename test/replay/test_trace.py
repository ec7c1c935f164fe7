"""Files in, trees out; and which line is wrong."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        ({**_LINE, "hash_ids": 7}, "line 2: hash_ids is 7: a list"),
        ({**_LINE, "hash_ids": [1, True]}, r"line 2: hash_ids\[1\] is True: a whole number"),
        ({**_LINE, "hash_ids": [1.0, 2]}, r"line 2: hash_ids\[0\] is 1.0: a whole number"),
        ({**_LINE, "timestamp": math.inf}, "line 2: timestamp is inf: a finite number"),
        ({**_LINE, "timestamp": math.nan}, "line 2: timestamp is nan: a finite number"),
        ({**_LINE, "timestamp": True}, "line 2: timestamp is True"),
        ({**_LINE, "timestamp": 10**400}, r"line 2: timestamp is 10+\.\.\. \(401 characters\)"),
        ({**_LINE, "output_length": math.inf}, "line 2: output_length is inf: a whole number"),
        ({**_LINE, "output_length": 10**400}, "line 2: output_length is 1000"),
        ({**_LINE, "input_length": 700.5}, "line 2: input_length is 700.5: a whole number"),
        ({**_LINE, "input_length": False, "hash_ids": []}, "line 2: input_length is False"),
        ('{"timestamp": ' + "1" * 5000 + "}\n", "line 2: a number has too many digits"),
        ("[" * 100_000 + "\n", "line 2: not a JSON object: nested too deeply"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, row, text) -> None:
    with pytest.raises(ValueError, match=text):
        read(_write(tmp_path, _LINE, row))


@pytest.mark.parametrize("text", ["", "\n \r\n\t\n", "\ufeff", "\ufeff\n"])
def test_an_empty_file_is_refused(tmp_path, text) -> None:
    with pytest.raises(ValueError, match=r"trace\.jsonl holds no request"):
        read(_write(tmp_path, text))


def _plain(text: bytes) -> bytes:
    return text


@pytest.mark.parametrize("packed", [_plain, gzip.compress])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n  \n", b"\r\n\r\n"])
def test_what_people_have_is_read(tmp_path, packed, start, end) -> None:
    """Byte order marks, line ends and blank lines of other systems, and packed files, whatever their name."""
    path = tmp_path / "trace.jsonl.gz"
    line = json.dumps(_LINE).encode()
    path.write_bytes(packed(start + end.join([line, line, line]) + end))
    trace = read(path)
    assert [request.path for request in trace.requests] == [(0, 1)] * 3
    assert len(read(path, requests=2).requests) == 2


def test_lines_are_counted_as_an_editor_does(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"trace\.jsonl, line 4: timestamp"):
        read(_write(tmp_path, "\ufeff\n", _LINE, "\n", {**_LINE, "timestamp": -1}))


def test_a_file_that_is_no_text_is_named(tmp_path) -> None:
    path = tmp_path / "trace.jsonl"
    line = json.dumps(_LINE).encode()
    for content, text in (
        (line + b'\n{"a": "\xff"}\n', r"trace\.jsonl, line 2: not UTF-8 text: .* at byte 8"),
        (json.dumps(_LINE).encode("utf-16"), r"trace\.jsonl, line 1: not UTF-8 text"),
        (gzip.compress(line * 50)[:-12], r"trace\.jsonl, line 1: cannot be read"),
        (b"\x1f\x8bnonsense", r"trace\.jsonl, line 1: cannot be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=text):
            read(path)


def test_whole_numbers_may_be_written_with_a_point(tmp_path) -> None:
    trace = read(_write(tmp_path, {**_LINE, "input_length": 700.0, "output_length": 5.0}))
    assert trace.requests[0].input_tokens == 700
    assert isinstance(trace.requests[0].input_tokens, int)


@given(st.lists(st.integers(-(2**64), 2**70), min_size=1, max_size=6))
def test_ids_may_be_hashes_of_any_size(tmp_path_factory, ids) -> None:
    path = tmp_path_factory.mktemp("ids") / "trace.jsonl"
    path.write_text(json.dumps({**_LINE, "input_length": 512 * len(ids), "hash_ids": ids}))
    trace = read(path)
    assert list(trace.hash_id) == ids
    drawn = surprisal.synthetic(trace, 0)
    assert len(set(drawn.tolist())) == len(set(ids))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_drawn_surprisal_does_not_depend_on_how_ids_are_written(trace_of, ids) -> None:
    order = list(dict.fromkeys(ids))
    hashes = {one: 2**63 - 7 * one for one in ids}
    small = trace_of([order.index(one) for one in ids])
    large = trace_of([hashes[one] for one in ids])
    assert np.array_equal(surprisal.synthetic(small, 3), surprisal.synthetic(large, 3))


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
    with pytest.raises(ValueError, match="line 2: no surprisal_nats"):
        surprisal.read(path, trace)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"hash_id": Infinity, "surprisal_nats": 1}', "hash_id is inf: a whole number"),
        ('{"hash_id": 1.7, "surprisal_nats": 1}', "hash_id is 1.7: a whole number"),
        ('{"hash_id": 1.0, "surprisal_nats": 1}', "hash_id is 1.0: a whole number"),
        ('{"hash_id": true, "surprisal_nats": 1}', "hash_id is True: a whole number"),
        ('{"hash_id": "1", "surprisal_nats": 1}', "hash_id is '1': a whole number"),
        ('{"hash_id": 1, "surprisal_nats": NaN}', "surprisal_nats is nan: a finite number"),
        ('{"hash_id": 1, "surprisal_nats": -1}', "surprisal_nats is -1: a finite number"),
        ('{"hash_id": 1, "surprisal_nats": "2"}', "surprisal_nats is '2': a finite number"),
        ('{"hash_id": 1, "surprisal_nats": false}', "surprisal_nats is False: a finite number"),
        ('{"hash_id": 1, "surprisal_nats": 1' + "0" * 400 + "}", "surprisal_nats is 1000"),
        ("[" * 100_000, "not a JSON object: nested too deeply"),
        ("7", "not a JSON object"),
        ("{", "not JSON"),
    ],
)
def test_a_malformed_surprisal_is_named(trace_of, tmp_path, text, match) -> None:
    path = tmp_path / "surprisal.jsonl"
    path.write_text('{"hash_id": 2, "surprisal_nats": 1.5}\n\n' + text + "\n")
    with pytest.raises(ValueError, match=rf"surprisal\.jsonl, line 3: {match}"):
        surprisal.read(path, trace_of([1, 2]))


def test_surprisal_of_another_trace_is_refused(trace_of, tmp_path) -> None:
    path = tmp_path / "surprisal.jsonl"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf{"hash_id": 18446744073709551615, "surprisal_nats": 1.5}\n'))
    with pytest.raises(ValueError, match="holds no hash_id of the trace"):
        surprisal.read(path, trace_of([1, 2]))
    known = surprisal.read(path, trace_of([2**64 - 1, 2]))
    assert np.array_equal(known, [1.5, np.nan], equal_nan=True)
