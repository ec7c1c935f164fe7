"""The front process: every request is checked at the one door of all routes, and its readings reach its meta_info."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from sgl_entropic.config import EntropicConfig, TelemetryConfig
from sgl_entropic.errors import RequestParameterError
from sgl_entropic.request_params import RequestParams
from sgl_entropic.runtime import tokenizer_manager as module
from sgl_entropic.runtime.response import INFO_KEY, TOKEN_FIELDS
from sgl_entropic.runtime.response_collector import SCOPE_KEY, ResponseCollector
from sgl_entropic.runtime.tokenizer_manager import (
    ServerFacts,
    admit,
    around_generate_request,
    around_update_request_meta_info,
    require_available,
)

SERVER = ServerFacts(49_152)
TOP_LEVEL = RequestParams(return_entropy=True)
WRITTEN = {"return_entropy": True, "return_prompt_surprisal": False}


@pytest.fixture(autouse=True)
def defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "active_config", EntropicConfig)


def request(sampling_params: Any = None, *, return_entropy: bool = False, stream: bool = False) -> Any:
    return SimpleNamespace(return_entropy=return_entropy, sampling_params=sampling_params, stream=stream)


@pytest.mark.parametrize("params", [None, {}, {"temperature": 0.5, "custom_params": {"mine": 1}}, [{}, None]])
def test_a_request_that_asks_for_nothing_is_not_changed(params: Any) -> None:
    obj = request(params)
    admit(obj, None, SERVER)
    assert obj.sampling_params == params


@pytest.mark.parametrize("params", [None, {}, {"custom_params": None}])
@pytest.mark.parametrize("field", [True, False])
def test_what_is_asked_at_the_top_is_written_where_the_scheduler_looks(params: Any, *, field: bool) -> None:
    """By SGLang's own field of the name, or by what the HTTP layer has found."""
    obj = request(params, return_entropy=field)
    admit(obj, None if field else TOP_LEVEL, SERVER)
    assert obj.sampling_params["custom_params"] == {"entropic": WRITTEN}


def test_every_entry_of_a_batch_is_written_and_foreign_keys_stay() -> None:
    given = [{"custom_params": {"mine": 1}}, {"temperature": 0.5}]
    obj = request(given)
    admit(obj, TOP_LEVEL, SERVER)
    assert obj.sampling_params == [
        {"custom_params": {"mine": 1, "entropic": WRITTEN}},
        {"temperature": 0.5, "custom_params": {"entropic": WRITTEN}},
    ]
    assert given == [{"custom_params": {"mine": 1}}, {"temperature": 0.5}], "the client's own object"


@pytest.mark.parametrize("custom", ["x", [1], {"entropic": {"x": True}}, {"entropc": {}}])
def test_malformed_parameters_are_refused_in_a_batch_too(custom: Any) -> None:
    for params in ({"custom_params": custom}, [{}, {"custom_params": custom}]):
        with pytest.raises(RequestParameterError):
            admit(request(params), None, SERVER)


def test_a_request_for_an_embedding_passes() -> None:
    obj = SimpleNamespace(sampling_params={"custom_params": "anything"})
    admit(obj, TOP_LEVEL, SERVER)
    assert obj.sampling_params == {"custom_params": "anything"}


def config(*, enabled: bool = True, prompt: bool = True) -> EntropicConfig:
    return EntropicConfig(telemetry=TelemetryConfig(enabled=enabled, prompt_surprisal=prompt))


@pytest.mark.parametrize(
    ("wanted", "configured", "flag"),
    [
        (RequestParams(return_entropy=True), config(enabled=False), "--entropic-telemetry off"),
        (RequestParams(return_prompt_surprisal=True), config(enabled=False), "--entropic-telemetry off"),
        (RequestParams(return_prompt_surprisal=True), config(prompt=False), "prompt-surprisal off"),
    ],
)
def test_what_is_switched_off_cannot_be_had(
    wanted: RequestParams, configured: EntropicConfig, flag: str
) -> None:
    with pytest.raises(RequestParameterError, match=flag):
        require_available(wanted, configured)
    require_available(wanted, config())
    require_available(RequestParams(), configured)


class Manager:
    """Yields responses until it is closed."""

    incremental_streaming_output = False
    model_config = SimpleNamespace(vocab_size=49_152)
    server_args = SimpleNamespace()

    def __init__(self, *responses: Any) -> None:
        self.responses = responses
        self.closed = False

    async def generate(self, obj: Any, request: Any) -> AsyncIterator[Any]:
        try:
            for response in self.responses:
                yield response
        finally:
            self.closed = True


def test_responses_pass_and_are_noted_for_the_http_layer() -> None:
    readings = {name: [1.0] for name in TOKEN_FIELDS}
    response = {"index": 0, "meta_info": {INFO_KEY: readings}}
    collector = ResponseCollector(TOP_LEVEL)
    manager, obj = Manager(response), request({})

    async def all_of_them() -> list[Any]:
        http = SimpleNamespace(scope={SCOPE_KEY: collector})
        return [one async for one in around_generate_request(Manager.generate, manager, obj, http)]

    assert asyncio.run(all_of_them()) == [response]
    assert collector.whole(0) == readings
    assert obj.sampling_params["custom_params"] == {"entropic": WRITTEN}


def test_a_client_that_leaves_closes_sglang_s_generator_at_once() -> None:
    manager = Manager(1, 2)

    async def first_only() -> bool:
        responses: Any = around_generate_request(Manager.generate, manager, request({}))
        assert await anext(responses) == 1
        await responses.aclose()
        return manager.closed

    assert asyncio.run(first_only()) is True


def test_a_refused_request_never_reaches_sglang() -> None:
    manager = Manager(1)

    async def ask() -> None:
        bad = request({"custom_params": 7})
        await anext(around_generate_request(Manager.generate, manager, bad))

    with pytest.raises(RequestParameterError):
        asyncio.run(ask())
    assert manager.closed is False


def chunk(*values: float, **more: Any) -> list[dict[str, Any]]:
    return [{**{name: list(values) for name in TOKEN_FIELDS}, **more}]


def updated(state: Any, info: dict[str, Any], *, incremental: bool = False) -> tuple[Any, Any]:
    """``meta_info`` after the hook, and what SGLang's own function was left to handle."""
    meta: dict[str, Any] = {}
    rest: list[Any] = []

    def original(manager: Any, meta_info: Any, state: Any, customized: Any, index: int, reason: Any) -> None:
        rest.append(customized)

    manager = SimpleNamespace(incremental_streaming_output=incremental)
    around_update_request_meta_info(original, manager, meta, state, info, 1, None)
    return meta, rest[0]


def test_our_chunk_is_taken_out_and_the_rest_is_sglang_s() -> None:
    state = SimpleNamespace(obj=request({}))
    info = {INFO_KEY: [chunk(9.0), chunk(1.0)], "theirs": [1, 2]}
    meta, rest = updated(state, info)
    assert meta == {INFO_KEY: {name: [1.0] for name in TOKEN_FIELDS}}
    assert rest == {"theirs": [1, 2]}
    assert set(info) == {INFO_KEY, "theirs"}


def test_without_a_chunk_nothing_is_added() -> None:
    info = {"theirs": [1, 2]}
    assert updated(SimpleNamespace(obj=request({})), info) == ({}, info)
    assert updated(SimpleNamespace(obj=request({})), {INFO_KEY: [[], []]}) == ({}, {})


@pytest.mark.parametrize("incremental", [False, True])
def test_a_stream_shows_the_whole_or_the_increment_as_the_server_was_told(*, incremental: bool) -> None:
    state = SimpleNamespace(obj=request({}, stream=True))
    prompt = {"prompt_surprisal_nats": [None], "prompt_entropy_nats": [None]}
    updated(state, {INFO_KEY: [[], chunk(1.0, **prompt)]}, incremental=incremental)
    meta, _ = updated(state, {INFO_KEY: [[], chunk(2.0)]}, incremental=incremental)
    if incremental:
        assert meta == {INFO_KEY: {"output_index": 1, **{name: [2.0] for name in TOKEN_FIELDS}}}
    else:
        assert meta == {INFO_KEY: {**prompt, **{name: [1.0, 2.0] for name in TOKEN_FIELDS}}}


@pytest.mark.parametrize(("wanted", "shown"), [(None, True), (True, True), (False, False)])
def test_the_summary_can_be_declined(*, wanted: bool | None, shown: bool) -> None:
    own = {} if wanted is None else {"return_summary": wanted}
    state = SimpleNamespace(obj=request({"custom_params": {"entropic": own}}))
    meta, _ = updated(state, {INFO_KEY: [[], [{"summary": {"tokens": 1}}]]})
    assert meta == ({INFO_KEY: {"summary": {"tokens": 1}}} if shown else {})


def test_a_target_entropy_is_checked_and_written() -> None:
    """At the one door, with what else the request says."""
    obj = request({"temperature": 0.7, "custom_params": {"entropic": {"target_entropy_nats": 1.5}}})
    admit(obj, TOP_LEVEL, SERVER)
    assert obj.sampling_params["custom_params"]["entropic"] == {**WRITTEN, "target_entropy_nats": 1.5}
    with pytest.raises(RequestParameterError, match="contradicts temperature"):
        admit(
            request({"temperature": 0, "custom_params": {"entropic": {"target_entropy_nats": 1}}}),
            None,
            SERVER,
        )


def test_a_server_that_cannot_steer_says_so() -> None:
    server = ServerFacts(49_152, "--pp-size 2 is not available here")
    for target, refused in ((1.5, True), ("off", False), (None, False)):
        entropic = {} if target is None else {"target_entropy_nats": target}
        asked = request({"custom_params": {"entropic": entropic}})
        if refused:
            with pytest.raises(RequestParameterError, match="--pp-size 2 is not available"):
                admit(asked, None, server)
        else:
            admit(asked, None, server)
