"""Steering in SGLang's sampler: state by request, neutral rows by bits, two ways that agree, and word to the host."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgl_entropic.entropy.row_statistics import row_statistics
from sgl_entropic.request_params import RequestParams
from sgl_entropic.runtime import request_state
from sgl_entropic.runtime.control import Control
from sgl_entropic.runtime.cpu import sampling as cpu
from sgl_entropic.runtime.request_state import RequestState, Steered
from sgl_entropic.runtime.slots import SlotStore
from sgl_entropic.runtime.steering import Steering, SteeringReadings, StepFacts, read_step
from sgl_entropic.trace.counters import Counters

VOCAB = 500
ALL = 1 << 30
EXACT = Control(2.0, "exact", 0.0, "temperature", math.log(0.5), math.log(2.0))
NEWTON = Control(2.0, "newton", 0.5, "temperature", math.log(0.5), math.log(2.0))
FIXED = Control(3.0, "fixed", 0.05, "temperature", math.log(0.5), math.log(2.0))
MIN_P = Control(1.0, "exact", 0.0, "min_p", math.log(0.5), math.log(2.0))
AUTO = Control(None, "exact", 0.0, "temperature", math.log(0.5), math.log(2.0))


def make_steering(rows: int = 8, slots: int = 64) -> Steering:
    table = torch.arange(rows * 8, dtype=torch.int32).view(rows, 8)
    store = SlotStore.allocate(slots, rows, "cpu")
    return Steering.allocate(table, store, Counters())


def sampling(count: int, temperature: float = 0.9, top_k: int = ALL) -> Any:
    return SimpleNamespace(
        is_all_greedy=False,
        temperatures=torch.full((count, 1), temperature),
        top_ks=torch.full((count,), top_k, dtype=torch.int32),
        top_ps=torch.ones(count),
        min_ps=torch.zeros(count),
        need_min_p_sampling=False,
        sampling_seed=None,
        sampling_mask_batch_indices=None,
    )


def logits_of(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def facts(*controls: Control | None, begins: tuple[Any, ...] = ()) -> StepFacts:
    return StepFacts(controls, begins)


def places(*rows: int) -> Any:
    return SimpleNamespace(req_pool_indices=torch.tensor(rows, dtype=torch.int32))


def both_ways(
    controls: tuple[Control | None, ...], begins: tuple[Any, ...], info: Any, seed: int
) -> list[Any]:
    """State, readings and temperatures after one step: by tensors, and by the call that draws."""
    outcomes = []
    count = len(controls)
    for fused in (False, True):
        steering, logits = make_steering(), logits_of(count, seed)
        steering.log_temperature[:] = torch.linspace(-0.5, 0.4, 8)
        with steering.step(facts(*controls, begins=begins), places(*range(2, 2 + count))) as step:
            own = step.own_copy(info)
            if fused:
                given = step.fused(own)
                assert given is not None
                cpu.draw(logits, own, steering=cpu.Steering(*given))
                step.show_temperatures(own)
            else:
                step.steer(logits, own)
                step.settle_from_logits(logits, own)
        assert info.temperatures.view(-1).tolist() == sampling(count).temperatures.view(-1).tolist()
        outcomes.append((steering.state[0].clone(), step.readings, own.temperatures))
    return outcomes


@pytest.mark.parametrize("seed", range(5))
def test_tensors_and_the_fused_call_agree(seed: int) -> None:
    """Two implementations of one law; also for rows that begin, anew and after a retraction."""
    controls = (EXACT, NEWTON, None, FIXED, NEWTON)
    begins = ((3, None, 4), (4, 0.2, 4))
    (state, readings, temperatures), (other, fused, fused_temperatures) = both_ways(
        controls, begins, sampling(5), seed
    )
    steered = [0, 1, 3, 4]
    assert readings is not None
    places_steered = [2, 3, 5, 6]
    assert torch.allclose(
        state[places_steered], other[places_steered], atol=2e-3
    )  # the tolerance of the exact row's search, in ln T
    assert torch.allclose(readings[:, steered], fused[:, steered], atol=2e-3)
    assert torch.allclose(temperatures, fused_temperatures, atol=2e-3)
    assert temperatures[2] == fused_temperatures[2] == sampling(5).temperatures[2], (
        "not steered: the same bits"
    )
    assert readings[0, 4] == pytest.approx(0.2), "what the host remembered"
    assert readings[0, 3] == pytest.approx(math.log(0.9)), "the request's own"


@pytest.mark.parametrize("fused", [False, True])
def test_greedy_rows_are_left_alone(*, fused: bool) -> None:
    steering, info = make_steering(), sampling(1, top_k=1)
    with steering.step(facts(EXACT), places(1)) as step:
        own = step.own_copy(info)
        if fused:
            cpu.draw(logits_of(1), own, steering=cpu.Steering(*step.fused(own)))
            step.show_temperatures(own)
        else:
            step.steer(logits_of(1), own)
            step.settle_from_logits(logits_of(1), own)
    assert torch.equal(own.temperatures, info.temperatures)


def test_an_exact_row_is_at_its_target() -> None:
    steering, logits, info = make_steering(), logits_of(2), sampling(2)
    control = dataclasses.replace(EXACT, target_nats=3.5)
    with steering.step(facts(control, None), places(1, 2)) as step:
        own = step.own_copy(info)
        step.steer(logits, own)
    entropy = row_statistics(logits, temperature=own.temperatures).entropy_nats
    assert entropy[0] == pytest.approx(3.5, abs=2e-3)
    assert own.temperatures[1] == info.temperatures[1]


def test_min_p_cuts_down_to_the_target_and_no_further() -> None:
    """Its own threshold stays the least; the temperature stays the request's."""
    steering, logits, info = make_steering(), logits_of(2), sampling(2)
    info.min_ps = torch.tensor([0.0, 0.9])
    with steering.step(facts(MIN_P, MIN_P), places(1, 2)) as step:
        assert step.fused(info) is None
        own = step.own_copy(info)
        step.steer(logits, own)
        step.settle_from_logits(logits, own)
    assert torch.equal(own.temperatures, info.temperatures)
    assert own.need_min_p_sampling
    assert own.min_ps[1] == pytest.approx(0.9)
    p = torch.softmax(logits[0].double() / 0.9, -1)
    kept = p[p >= own.min_ps[0] * p.max()]
    kept = kept / kept.sum()
    assert float(-(kept * kept.log()).sum()) >= 1.0 - 1e-4
    fewer = p[p > kept.min() * p[p >= own.min_ps[0] * p.max()].sum()]
    fewer = fewer / fewer.sum()
    assert float(-(fewer * fewer.log()).sum()) < 1.0
    assert step.readings is not None
    assert step.readings.shape == (6, 2)


def test_auto_is_the_mean_of_the_prompt_s_entropies() -> None:
    """Of the tokens before the last one: that one's entropy is of the token drawn now."""
    steering = make_steering(slots=80)
    assert steering.store is not None
    steering.req_to_token = torch.arange(8 * 16, dtype=torch.int32).view(8, 16) % 80
    slots = steering.req_to_token[2, :12].long()
    steering.store.entropy_nats[slots] = torch.linspace(0.5, 2.7, 12)
    steering.store.entropy_nats[slots[-1]] = 100.0
    with steering.step(facts(AUTO, begins=((0, None, 12),)), places(2)) as step:
        step.steer(logits_of(1), step.own_copy(sampling(1)))
        step.settle_from_logits(logits_of(1), sampling(1))
    assert step.readings is not None
    assert step.readings[3, 0] == pytest.approx(float(torch.linspace(0.5, 2.7, 12)[:-1].mean()))


def state(control: Control | None) -> RequestState:
    return RequestState(RequestParams(), control=control)


def request(control: Control | None, prompt: int = 4) -> Any:
    return SimpleNamespace(_sgl_entropic=state(control), origin_input_ids=[0] * prompt)


def batch(*reqs: Any, extend: bool, decoding: int = 0) -> Any:
    return SimpleNamespace(
        reqs=list(reqs),
        forward_mode=SimpleNamespace(is_extend=lambda: extend),
        decoding_reqs=list(reqs)[len(reqs) - decoding :] if decoding else None,
    )


def test_what_the_host_tells_of_a_step() -> None:
    """Nothing where nobody is steered; in a mixed batch, rows that decode do not begin."""
    free, steered, again = request(None), request(EXACT, 5), request(NEWTON, 6)
    again._sgl_entropic.log_temperature = 0.3
    assert read_step(batch(free, extend=True)) is None
    assert read_step(batch(free, steered, extend=False)) == StepFacts((None, EXACT), ())
    assert read_step(batch(free, steered, again, extend=True)) == StepFacts(
        (None, EXACT, NEWTON), ((1, None, 5), (2, 0.3, 6))
    )
    assert read_step(batch(steered, again, extend=True, decoding=1)) == StepFacts(
        (EXACT, NEWTON), ((0, None, 5),)
    )


def test_a_request_hears_how_its_committed_tokens_were_drawn() -> None:
    steering = make_steering()
    free, steered, cut, dropped = request(None), request(EXACT), request(MIN_P), request(EXACT)
    unknown = [math.nan] * 2
    values = torch.tensor(
        [
            [0.0, math.log(1.5), 0.0, 9.0],
            [0.0, 0.1, 0.2, 9.0],
            [0.0, 1.0, 0.0, 1.0],
            [math.inf, 2.0, 1.0, 2.0],
            [*unknown, 0.05, math.nan],
            [*unknown, 1.2, math.nan],
        ]
    )
    readings = SteeringReadings(steering, facts(None, EXACT, MIN_P, EXACT), values).copy_to_host(
        lambda t: t.clone()
    )
    commit = SimpleNamespace(output_index=1)
    readings.consume(batch(free, steered, cut, dropped, extend=False), [commit, commit, commit, None])
    assert free._sgl_entropic.steered == []
    assert dropped._sgl_entropic.log_temperature is None
    own = steered._sgl_entropic
    assert own.log_temperature == pytest.approx(0.1)
    assert own.target_nats == 2.0
    assert own.steered[0] == request_state.NOT_STEERED
    assert own.steered[1].temperature == pytest.approx(1.5)
    assert own.steered_at(1).saturated is True
    assert own.steered_at(7) == request_state.NOT_STEERED
    assert cut._sgl_entropic.steered_at(1) == Steered(1.0, False, pytest.approx(0.05), pytest.approx(1.2))
    assert (steering.counters.steered_tokens, steering.counters.saturated_tokens) == (2, 1)
