"""Where gravity shows: from the step's tensors to requests, responses, trace, counters and metrics."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from prometheus_client import REGISTRY

from sgl_entropic import activation
from sgl_entropic.config import EntropicConfig, GravityConfig, TelemetryConfig
from sgl_entropic.errors import UnsupportedError
from sgl_entropic.runtime.active_config import active_config
from sgl_entropic.runtime.auxiliary import DeviceReadings
from sgl_entropic.runtime.gravity.start import ask_for_hidden_states
from sgl_entropic.runtime.metrics import Metrics
from sgl_entropic.runtime.output_streamer import EntropicOutputStreamer
from sgl_entropic.runtime.recorder import Recorder
from sgl_entropic.runtime.refusals import refuse_combinations
from sgl_entropic.runtime.request_state import state_of
from sgl_entropic.runtime.response import INFO_KEY, ResponseReadings
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.record import StepRecord, decode, encode

KEYS = ("gravity", "energy", "free_energy", "tier")


class Outlet:
    """Remembers the records that it is offered."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def offer(self, record: StepRecord) -> bool:
        self.records.append(record)
        return True


class Request:
    """As much of a request of SGLang as is looked at."""

    def __init__(self, rid: str, *, beam: bool = False) -> None:
        self.rid, self.vocab_size = rid, 100
        self.beam_group = object() if beam else None
        self.sampling_params = SimpleNamespace(custom_params={"entropic": {"return_entropy": True}}, top_k=50)
        self.send_token_offset = 0

    def finished(self) -> bool:
        return True


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    config = EntropicConfig(gravity=GravityConfig(enabled=True, opening_tokens=0))
    monkeypatch.setattr(activation, "exported_config", config.to_json)
    active_config.cache_clear()
    yield
    active_config.cache_clear()


def step_of(recorder: Recorder, reqs: list[Any], gravity: list[list[float]] | None) -> None:
    """One decode step in which each request gets its first token, at an entropy of 0."""
    readings = DeviceReadings(
        recorder, torch.zeros(4, len(reqs)), {}, None if gravity is None else torch.tensor(gravity)
    )
    mode = SimpleNamespace(is_mixed=lambda: False, is_extend=lambda: False)
    commits = [SimpleNamespace(output_index=0, token_ids=(7,)) for _ in reqs]
    readings.copy_to_host(torch.Tensor.clone).consume(SimpleNamespace(reqs=reqs, forward_mode=mode), commits)


def chunk_of(req: Request) -> dict[str, Any]:
    req.send_token_offset = 1
    streamer = EntropicOutputStreamer.__new__(EntropicOutputStreamer)
    ((chunk,),) = streamer.build_additional_customized_info([req])[INFO_KEY]
    return chunk


@pytest.mark.usefixtures("on")
def test_a_step_reaches_every_outlet() -> None:
    outlet, counters = Outlet(), Counters()
    strong, weak, beam = Request("strong"), Request("weak"), Request("beam", beam=True)
    unknown = float("nan")
    step_of(Recorder(counters, (outlet,)), [strong, weak, beam], [[0.75, 0.0, 0.5], [0.5, unknown, 0.5]])  # type: ignore[arg-type]
    assert (counters.strong_tokens, counters.medium_tokens, counters.weak_tokens) == (1, 0, 1)
    assert state_of(beam).narrative is None
    (record,) = outlet.records
    assert decode(encode(record)) == record
    assert [[getattr(row, key) for key in KEYS] for row in record.rows] == [
        [0.75, 0.5, 0.5, "strong"],
        [0.0, None, None, "weak"],
    ]
    response = ResponseReadings()
    response.add(chunk_of(strong))
    document = response.document()
    assert {key: document[key] for key in KEYS} == {
        "gravity": [0.75],
        "energy": [0.5],
        "free_energy": [0.5],
        "tier": ["strong"],
    }
    assert document["summary"]["mean_gravity"] == 0.75
    assert document["summary"]["strong_share"] == 1.0


def test_off_it_shows_nowhere() -> None:
    outlet, counters, req = Outlet(), Counters(), Request("plain")
    step_of(Recorder(counters, (outlet,)), [req], None)  # type: ignore[arg-type]
    assert counters.measured_tokens == 1
    assert counters.strong_tokens == counters.medium_tokens == counters.weak_tokens == 0
    assert [getattr(outlet.records[0].rows[0], key) for key in KEYS] == [None] * 4
    chunk = chunk_of(req)
    assert not set(KEYS) & set(chunk)
    assert not {"mean_gravity", "strong_share"} & set(chunk["summary"])


@pytest.mark.usefixtures("on")
def test_the_fleet_s_share_is_a_gauge() -> None:
    before = set(REGISTRY._collector_to_names)
    try:
        recorder = Recorder(Counters(), metrics=Metrics({"model_name": "m"}), fleet_share=lambda: 0.25)
        step_of(recorder, [Request("r")], [[0.0], [0.0]])
        assert REGISTRY.get_sample_value("sgl_entropic:fleet_gravity", {"model_name": "m"}) == 0.25
    finally:
        for collector in set(REGISTRY._collector_to_names) - before:
            REGISTRY.unregister(collector)


@pytest.mark.parametrize(
    ("config", "given", "expected"),
    [
        (GravityConfig(enabled=True), (None, False), "last"),
        (GravityConfig(enabled=True), ("full", False), "full"),
        (GravityConfig(enabled=True), (None, True), None),
        (GravityConfig(enabled=True, signal="entropy"), (None, False), None),
        (GravityConfig(), (None, False), None),
    ],
)
def test_hidden_states_are_asked_for_only_where_they_are_needed(
    config: GravityConfig, given: tuple[str | None, bool], expected: str | None
) -> None:
    namespace = argparse.Namespace(return_hidden_states_mode=given[0], enable_return_hidden_states=given[1])
    ask_for_hidden_states(namespace, config)
    assert namespace.return_hidden_states_mode == expected


def test_what_it_cannot_work_with_is_refused() -> None:
    hidden = EntropicConfig(gravity=GravityConfig(enabled=True))
    proxy = EntropicConfig(gravity=GravityConfig(enabled=True, signal="surprisal"))
    auxiliary = argparse.Namespace(enable_return_aux_hidden_states=True)
    with pytest.raises(UnsupportedError, match="--enable-return-aux-hidden-states is not available here"):
        refuse_combinations(auxiliary, hidden)
    refuse_combinations(auxiliary, proxy)
    silent = EntropicConfig(telemetry=TelemetryConfig(enabled=False), gravity=GravityConfig(enabled=True))
    with pytest.raises(
        UnsupportedError, match="--entropic-gravity on needs the entropies of --entropic-telemetry on"
    ):
        refuse_combinations(argparse.Namespace(), silent)
