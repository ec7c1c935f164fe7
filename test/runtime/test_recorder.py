"""One step goes to its requests, the counters, the metrics and the outlets; only tokens that count are recorded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.runtime.recorder import Recorder
from sgl_entropic.runtime.request_state import state_of
from sgl_entropic.signals import TokenReading
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.record import RowRecord, StepRecord

UNKNOWN = TokenReading(None, None, None, None)


class Outlet:
    """Remembers the records that it is offered, and can be full."""

    def __init__(self, *, full: bool = False) -> None:
        self.full = full
        self.records: list[StepRecord] = []

    def offer(self, record: StepRecord) -> bool:
        self.records.append(record)
        return not self.full


class Metrics:
    """Remembers what it is shown."""

    def __init__(self) -> None:
        self.observed: list[list[TokenReading]] = []
        self.published: list[dict[str, int]] = []

    def observe(self, readings: list[TokenReading]) -> None:
        self.observed.append(readings)

    def publish(self, counters: Counters) -> None:
        self.published.append(counters.snapshot())


def reading(entropy_nats: float) -> TokenReading:
    return TokenReading(entropy_nats, 0.5, entropy_nats + 1.0, entropy_nats / 2.0)


def request(rid: str, *, beam: bool = False) -> Any:
    return SimpleNamespace(
        rid=rid,
        beam_group=object() if beam else None,
        sampling_params=SimpleNamespace(custom_params=None),
    )


def commit(output_index: int, *token_ids: int) -> Any:
    return SimpleNamespace(output_index=output_index, token_ids=token_ids)


def batch_of(reqs: list[Any], *, mixed: bool = False, extend: bool = False) -> Any:
    mode = SimpleNamespace(is_mixed=lambda: mixed, is_extend=lambda: extend or mixed)
    return SimpleNamespace(reqs=reqs, forward_mode=mode)


def recorder(*outlets: Outlet, metrics: Metrics | None = None) -> Recorder:
    return Recorder(Counters(), outlets, metrics)  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(["counts", "discarded", "beam", "undefined"]), max_size=6))
def test_only_tokens_that_count_are_recorded(rows: list[str]) -> None:
    """No commit: a middle chunk, an overrun or a retraction. Beam rows are SGLang's own. An undefined one counts."""
    outlet, metrics = Outlet(), Metrics()
    record = recorder(outlet, metrics=metrics)
    reqs = [request(str(i), beam=kind == "beam") for i, kind in enumerate(rows)]
    commits = [None if kind == "discarded" else commit(0, i) for i, kind in enumerate(rows)]
    readings = [UNKNOWN if kind == "undefined" else reading(float(i)) for i, kind in enumerate(rows)]
    record.record_step(batch_of(reqs), commits, readings)
    recorded = [i for i, kind in enumerate(rows) if kind in ("counts", "undefined")]
    for i, req in enumerate(reqs):
        assert state_of(req).readings == ([readings[i]] if i in recorded else [])
    assert record.counters.measured_tokens == len(recorded)
    assert record.counters.invalid_rows == rows.count("undefined")
    assert metrics.observed == [[readings[i] for i in recorded]]
    assert metrics.published == [record.counters.snapshot()]
    assert [row.rid for one in outlet.records for row in one.rows] == [str(i) for i in recorded]


def test_a_record_holds_the_step() -> None:
    outlet = Outlet()
    record = recorder(outlet)
    req = request("r1")
    state_of(req).add(0, UNKNOWN)
    record.record_step(batch_of([req]), [commit(1, 17)], [TokenReading(1.0, 2.0, 3.0, 4.0)])
    (step,) = outlet.records
    assert step.rows == (RowRecord("r1", 1, 17, 1.0, 2.0, 3.0, 4.0),)
    assert step.step == 1
    assert isinstance(step.time_ns, int)


@pytest.mark.parametrize(
    ("mixed", "extend", "kind"),
    [(False, False, "decode"), (False, True, "extend"), (True, False, "mixed")],
)
def test_the_kind_of_a_step(*, mixed: bool, extend: bool, kind: str) -> None:
    """A mixed batch is an extend to SGLang too."""
    outlet = Outlet()
    batch = batch_of([request("r")], mixed=mixed, extend=extend)
    recorder(outlet).record_step(batch, [commit(0, 1)], [reading(1.0)])
    assert [record.kind for record in outlet.records] == [kind]


def test_steps_are_numbered_even_when_nothing_of_them_counts() -> None:
    """A step without a token is published by nobody, and its number is seen to be missing."""
    outlet = Outlet()
    record = recorder(outlet)
    req = request("r")
    record.record_step(batch_of([req]), [commit(0, 1)], [reading(1.0)])
    record.record_step(batch_of([req]), [None], [reading(1.0)])
    record.record_step(batch_of([req]), [commit(1, 2)], [reading(2.0)])
    assert [one.step for one in outlet.records] == [1, 3]
    assert state_of(req).readings == [reading(1.0), reading(2.0)]


def test_padding_rows_of_a_graph_are_ignored() -> None:
    """There may be more readings than requests, never fewer."""
    record = recorder()
    req = request("r")
    record.record_step(batch_of([req]), [commit(0, 1)], [reading(1.0), reading(9.0)])
    assert state_of(req).readings == [reading(1.0)]
    assert record.counters.measured_tokens == 1


def test_a_full_outlet_keeps_nothing_from_the_others() -> None:
    full, free = Outlet(full=True), Outlet()
    req = request("r")
    recorder(full, free).record_step(batch_of([req]), [commit(0, 1)], [reading(1.0)])
    assert full.records == free.records
    assert len(free.records) == 1
    assert state_of(req).readings == [reading(1.0)]


def test_prompt_readings_are_kept_for_the_response() -> None:
    req = request("r")
    recorder().record_prompt(req, [[None, 1.0], [None, 2.0]])
    assert state_of(req).prompt == [[None, 1.0], [None, 2.0]]
    assert state_of(req).prompt_sent is False
