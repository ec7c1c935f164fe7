"""Puts each request's new readings into the message that SGLang sends towards the HTTP server."""

from __future__ import annotations

from typing import Any, ClassVar

from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer

from sgl_entropic.runtime.attention import planner as attention
from sgl_entropic.runtime.request_state import RequestState, state_of
from sgl_entropic.runtime.response import INFO_KEY
from sgl_entropic.runtime.scheduling.notes import report_of
from sgl_entropic.signals import TokenReading, json_number


class EntropicOutputStreamer(SchedulerOutputStreamer):
    """Adds one field to the generation output: a list of at most one chunk of readings for every emitted request."""

    has_additional_customized_info: ClassVar[bool] = True

    def build_additional_customized_info(self, reqs: list[Any]) -> dict[str, list[Any]]:
        """One entry for each of ``reqs``, aligned with the tokens that are sent along."""
        return {INFO_KEY: [_chunk(req) for req in reqs]}


def _chunk(req: Any) -> list[dict[str, Any]]:
    if req.beam_group is not None:
        return []
    state = state_of(req)
    chunk: dict[str, Any] = {}
    if state.params.return_entropy:
        chunk.update(_token_fields(state, req.send_token_offset))
    if state.prompt is not None and not state.prompt_sent:
        state.prompt_sent = True
        chunk["prompt_surprisal_nats"], chunk["prompt_entropy_nats"] = map(_rounded, state.prompt)
    if req.finished():
        chunk["summary"] = {**state.time.summary().to_dict(), **_narrative_summary(state)}
        if (scheduling := report_of(req)) is not None:
            chunk["scheduling"] = scheduling
        if state.pruning is not None:
            planner = attention.installed()
            cost = None if planner is None else planner.cost
            chunk["attention"] = state.pruning.report(len(state.readings), cost)
            # A session keeps its requests for longer than they run.
            state.pruning.release()
    return [chunk] if chunk else []


def _token_fields(state: RequestState, end: int) -> dict[str, Any]:
    begin, state.sent = state.sent, end
    steered = {} if state.control is None else _steered_fields(state, begin, end)
    readings = state.readings[begin:end]
    readings += [TokenReading(None, None, None, None)] * (end - begin - len(readings))
    return {
        "start": begin,
        "entropy_nats": _rounded([r.entropy_nats for r in readings]),
        "surprisal_nats": _rounded([r.surprisal_nats for r in readings]),
        "sampled_entropy_nats": _rounded([r.sampled_entropy_nats for r in readings]),
        **steered,
        **_read_fields(state, begin, end),
        **_narrative_fields(state, begin, end),
    }


def _narrative_fields(state: RequestState, begin: int, end: int) -> dict[str, Any]:
    if state.narrative is None:
        return {}
    readings = [state.narrative.at(index) for index in range(begin, end)]
    return {
        "gravity": _rounded([r.gravity for r in readings]),
        "energy": _rounded([r.energy for r in readings]),
        "free_energy": _rounded([r.free_energy for r in readings]),
        "tier": [r.tier for r in readings],
    }


def _narrative_summary(state: RequestState) -> dict[str, float | None]:
    if state.narrative is None:
        return {}
    return {name: json_number(value) for name, value in state.narrative.summary().items()}


def _read_fields(state: RequestState, begin: int, end: int) -> dict[str, Any]:
    if state.pruning is None:
        return {}
    reads = [state.pruning.read_at(index) for index in range(begin, end)]
    return {"keep_ratio": _rounded([None if read is None else read.ratio for read in reads])}


def _steered_fields(state: RequestState, begin: int, end: int) -> dict[str, Any]:
    steered = [state.steered_at(index) for index in range(begin, end)]
    fields = {
        "temperature": _rounded([s.temperature for s in steered]),
        "saturated": [s.saturated for s in steered],
        "target_entropy_nats": json_number(state.target_nats),
    }
    if state.control is not None and state.control.actuator == "min_p":
        fields["min_p"] = _rounded([s.min_p for s in steered])
        fields["cut_entropy_nats"] = _rounded([s.cut_entropy_nats for s in steered])
    return fields


def _rounded(values: list[float | None]) -> list[float | None]:
    return [json_number(value) for value in values]
