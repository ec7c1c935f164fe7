"""The plan of a step from what SGLang's batch holds, and what is left of a request that begins again."""

from __future__ import annotations

from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from sgl_entropic.attention.pruning import Pruning, Reading
from sgl_entropic.attention.selection import QueryChoice, Selection
from sgl_entropic.attention.settings import AttentionSettings, Policy
from sgl_entropic.config import AttentionConfig
from sgl_entropic.errors import ConfigError, RequestParameterError
from sgl_entropic.request_params import RequestParams
from sgl_entropic.runtime.attention import planner as module
from sgl_entropic.runtime.attention.cost import ReadCost
from sgl_entropic.runtime.attention.planner import Planner, share_again
from sgl_entropic.runtime.attention.request import Read, RequestPruning, read_of
from sgl_entropic.runtime.attention.settings import check_config, check_request, settings_of
from sgl_entropic.runtime.request_state import RequestState
from sgl_entropic.signals import TokenReading
from sgl_entropic.trace.counters import Counters

PROMPT = 600
SETTINGS = AttentionSettings(policy="surprisal", min_keep_ratio=0.3, max_keep_ratio=0.3)


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Planner:
    made = Planner(
        config=AttentionConfig(enabled=True),
        surprisal_nats=torch.full((4000,), float("nan")),
        req_to_token=torch.arange(4000, dtype=torch.int32).view(4, 1000),
        counters=Counters(),
        cost=ReadCost(1000.0, 500, 10, 4),
    )
    made.surprisal_nats[1000:2000] = torch.linspace(0.0, 5.0, 1000)
    monkeypatch.setattr(module, "_installed", made)
    return made


def request(
    *, pruned: bool = True, outputs: int = 40, limit: int = 128, settings: AttentionSettings = SETTINGS
) -> Any:
    state = RequestState(RequestParams(), pruning=RequestPruning(Pruning(settings)) if pruned else None)
    for index in range(outputs):
        state.add(index, TokenReading(1.0, 1.0, 2.0, 1.0))
    made = SimpleNamespace(
        origin_input_ids=[1] * PROMPT,
        sampling_params=SimpleNamespace(max_new_tokens=limit),
        output_ids=array("q", [1] * outputs),
        skip_radix_cache_insert=False,
        beam_group=None,
    )
    made._sgl_entropic = state
    return made


def batch(reqs: list[Any], rows: list[int], lengths: list[int], *, decode: bool = True) -> Any:
    return SimpleNamespace(
        forward_mode=SimpleNamespace(is_decode=lambda: decode),
        reqs=reqs,
        req_pool_indices_cpu=torch.tensor(rows),
        seq_lens_cpu=torch.tensor(lengths),
    )


def test_a_pruned_row_and_its_neighbours(planner: Planner) -> None:
    """The blocks are those of the largest surprisal in the request's own row; what it generates is withheld."""
    one, other = request(), request(pruned=False)
    plan = planner.plan(batch([other, one], [2, 1], [PROMPT + 10, PROMPT + 10]))
    assert plan is not None
    kept, tail = plan.masks()
    assert tail.tolist() == [0, 544]
    assert kept.shape == (1, 2, 34)
    chosen = [block for block, read in enumerate(kept[0, 1]) if read]
    assert chosen == [0, *range(chosen[1], 34)]
    assert one.skip_radix_cache_insert is True
    assert other.skip_radix_cache_insert is False
    assert planner.counters.rescored_contexts == 1
    read = one._sgl_entropic.pruning.read_at(10)
    assert read.tokens == len(chosen) * 16 + PROMPT + 10 - 544
    assert read.context_tokens == PROMPT + 10


def test_a_request_is_charged_for_no_more_growth_than_it_may_have(planner: Planner) -> None:
    """The share that is asked for, 0.55 for 1 nat of 2, at the start of an interval of 1,000 steps."""
    settings = AttentionSettings(
        policy="surprisal", min_keep_ratio=0.1, reference_entropy_nats=2.0, score_interval_steps=1000
    )
    read = []
    for limit in (12, 128):
        req = request(limit=limit, settings=settings)
        assert planner.plan(batch([req], [1], [PROMPT + 10])) is not None
        read.append(req._sgl_entropic.pruning.read_at(10).tokens / (PROMPT + 10))
    assert 0.55 - 17 / 610 < read[0] <= 0.55
    # 118 steps add 58.5 tokens on the mean, of which 0.45 are too many.
    assert read[1] == pytest.approx(read[0] - 58 * 0.45 / 610, abs=17 / 610)


def test_rows_of_beams_behind_the_requests_read_all(planner: Planner) -> None:
    """SGLang adds rows of a beam to the lengths and not to the requests."""
    plan = planner.plan(batch([request()], [1, 3, 2], [PROMPT + 10, PROMPT + 9, PROMPT + 9]))
    assert plan is not None
    assert len(plan.lengths) == len(plan.readings) == len(plan.requests) == 3
    kept, tail = plan.masks()
    assert kept.shape[1] == 3
    assert tail.tolist() == [544, 0, 0]
    assert planner.plan(batch([request(pruned=False)], [1, 3], [50, 49])) is None


def test_a_prefill_has_no_plan(planner: Planner) -> None:
    assert planner.plan(batch([request()], [1], [PROMPT], decode=False)) is None


def test_a_request_that_begins_again_remembers_nothing_of_its_context(planner: Planner) -> None:
    req = request(outputs=100)
    for index in range(90, 100):
        assert planner.plan(batch([req], [1], [PROMPT + index])) is not None
    pruning = req._sgl_entropic.pruning
    pruning.keys = object()
    assert req.skip_radix_cache_insert is True
    # Its answer is gone too, as with input embeddings; the step of token 99 was discarded.
    req.output_ids = array("q")
    share_again(req)
    assert req.skip_radix_cache_insert is False
    assert (pruning.keys, pruning.mass, pruning.prompt_surprisal_nats, pruning.reads) == (
        None,
        None,
        None,
        [],
    )
    plan = planner.plan(batch([req], [1], [PROMPT + 2]))
    assert plan is not None
    assert plan.masks()[1].tolist() == [528]


def test_what_others_set_is_not_taken_back(planner: Planner) -> None:
    req = request()
    req.skip_radix_cache_insert = True
    assert planner.plan(batch([req], [1], [PROMPT + 10])) is not None
    share_again(req)
    assert req.skip_radix_cache_insert is True


def test_a_report_counts_what_came_out(planner: Planner) -> None:
    pruning = RequestPruning(Pruning(SETTINGS))
    for index, tokens in ((1, 700.0), (2, 350.0), (3, 350.0), (4, 350.0)):
        pruning.note(index, Read(tokens, 700, 5, 50) if tokens < 700 else Read(tokens, 700))
    report = pruning.report(4, planner.cost)
    assert report["decode_steps"] == 3
    assert report["pruned_steps"] == 2
    assert report["keep_ratio"] == pytest.approx(1400 / 2100, abs=1e-6)
    assert report["kv_bytes_avoided"] == 700 * 1000 - 2 * 50
    assert report["flops_avoided"] == 700 * 500
    assert RequestPruning(Pruning(SETTINGS)).report(5, None)["keep_ratio"] is None


def test_choosing_is_paid_for(planner: Planner) -> None:
    """Of 30 blocks: two bits for each number that is asked, means and steps of all, or two numbers of two bytes of all.

    Given lists cost nothing.
    """
    choice = QueryChoice(30, 10, 1, 1, np.zeros(30, np.float32))
    cases: list[tuple[Policy, int, float]] = [
        ("mixed", 16, 16 * (4 / 4 + 10 / 32)),
        ("mixed", 64, 64 * (4 / 4 + 10 / 32)),
        ("quest", 16, 40.0),
        ("quest", 64, 40.0),
    ]
    for policy, size, of_block in cases:
        asked = replace(SETTINGS, policy=policy, block_tokens=size)
        read = read_of(Reading(choice, "kept"), 3000, asked, planner.cost)
        assert (read.blocks_scored, read.choosing_bytes) == (30, 30 * of_block)
    given = Reading(Selection(np.ones((1, 30), np.bool_), 480), "kept")
    assert read_of(given, 500, SETTINGS, planner.cost).choosing_bytes == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"max_keep_ratio": 0.1}, "min_keep_ratio, which is 0.15 where mixed is not told otherwise"),
        ({"max_keep_ratio": 0.2, "attention_policy": "quest"}, "0.25 where quest is not told otherwise"),
        ({"min_keep_ratio": 0.5, "max_keep_ratio": 0.4}, "below min_keep_ratio = 0.5"),
        ({"attention_pruning": False, "attention_policy": "streaming"}, "attention_pruning is false"),
        ({"attention_policy": "mixed"}, "compiled kernels"),
    ],
)
def test_what_a_request_cannot_ask(asked: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sgl_entropic.runtime.attention.settings.compiled_kernels_asked_for",
        lambda: said != "compiled kernels",
    )
    with pytest.raises(RequestParameterError, match=said):
        check_request(RequestParams(**asked), AttentionConfig(enabled=True))


def test_a_share_is_the_requests_the_servers_or_the_policys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgl_entropic.runtime.attention.settings.compiled_kernels_asked_for", lambda: True)

    def least(asked: dict[str, Any], **config: Any) -> float:
        params, server = RequestParams(**asked), AttentionConfig(enabled=True, **config)
        check_request(params, server)
        settings = settings_of(params, server, 1000)
        assert settings is not None
        return settings.min_keep_ratio

    assert least({}) == 0.15
    assert least({"max_keep_ratio": 0.2}) == 0.15
    assert least({"attention_policy": "quest"}) == 0.25
    assert least({}, policy="surprisal") == 0.25
    assert least({"attention_policy": "mixed"}, policy="surprisal") == 0.15
    assert least({"attention_policy": "quest"}, min_keep_ratio=0.4) == 0.4
    assert least({"min_keep_ratio": 0.3}, min_keep_ratio=0.4) == 0.3
    with pytest.raises(RequestParameterError, match=r"which is the server's 0\.4; accepted"):
        least({"max_keep_ratio": 0.3}, min_keep_ratio=0.4)


@pytest.mark.parametrize(
    ("config", "page_size", "window", "said"),
    [
        ({"min_keep_ratio": 0.5, "max_keep_ratio": 0.4}, 1, None, "below attention.min_keep_ratio"),
        ({"policy": "quest", "max_keep_ratio": 0.2}, 1, None, "= 0.25, which quest has"),
        ({"block_tokens": 16}, 32, None, "no multiple of --page-size 32"),
        ({}, 1, 4096, "slides over 4096 tokens"),
    ],
)
def test_what_a_server_cannot_be_set_to(
    config: dict[str, Any], page_size: int, window: int | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_config(AttentionConfig(enabled=True, **config), page_size, window, compiled=True)


def test_a_spike_is_above_an_entropy_that_others_fall_below() -> None:
    """Beyond 0 nats all would be read for ever, as no entropy is below three quarters of that."""
    with pytest.raises(ValidationError, match=r"spike_entropy_nats\s.*0\.01"):
        AttentionConfig(spike_entropy_nats=0.0)
    assert AttentionConfig(spike_entropy_nats=0.01).spike_entropy_nats == 0.01
