"""The bookkeeping of a step on the device, against plain walks over the tokens of each request."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.config import EntropicConfig
from sgl_entropic.runtime import telemetry as module
from sgl_entropic.runtime.recorder import Recorder
from sgl_entropic.runtime.request_state import state_of
from sgl_entropic.runtime.slots import SlotStore
from sgl_entropic.runtime.step_context import StepContext
from sgl_entropic.runtime.telemetry import Telemetry
from sgl_entropic.trace.counters import Counters
from sgl_entropic_kernels import reference

VOCAB = 5
SLOTS = 64
ROWS = 6
FLOAT32: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
GREEDY = SimpleNamespace(
    is_all_greedy=True,
    grammars=None,
    logit_bias=None,
    acc_additive_penalties=None,
    acc_scaling_penalties=None,
    penalizer_orchestrator=None,
    has_custom_logit_processor=False,
    has_watermark_candidates=False,
    temperatures=torch.ones(ROWS, 1),
    top_ks=torch.ones(ROWS, dtype=torch.int32),
)


def make_telemetry(*, store: bool = True) -> Telemetry:
    """Telemetry whose store is full of other requests' numbers, each different."""
    numbers = torch.arange(2 * SLOTS + ROWS, dtype=torch.float32) + 1000.0
    counters = Counters()
    return Telemetry(
        config=EntropicConfig(),
        store=SlotStore(numbers[:SLOTS], numbers[SLOTS : 2 * SLOTS], numbers[2 * SLOTS :]) if store else None,
        req_to_token=torch.arange(ROWS * 10).view(ROWS, 10),
        tree_cache=SimpleNamespace(path_device_indices=torch.tensor),
        recorder=Recorder(counters),
        counters=counters,
    )


def store_of(telemetry: Telemetry) -> SlotStore:
    assert telemetry.store is not None
    return telemetry.store


def request(fill: list[int], end: int, custom_params: Any = None) -> Any:
    """A request without a prefix hit whose chunk ends at ``end``."""
    return SimpleNamespace(
        prefix_len=0,
        last_node=[],
        origin_input_ids=fill,
        full_untruncated_fill_ids=fill,
        extend_end=end,
        sampling_params=SimpleNamespace(custom_params=custom_params),
    )


def batch_of(reqs: list[Any], *, extend: bool = True) -> Any:
    return SimpleNamespace(reqs=reqs, forward_mode=SimpleNamespace(is_extend=lambda: extend))


def forward_batch(lens: list[int], slots: list[int], rows: list[int], tokens: list[int]) -> Any:
    """A forward batch with SGLang's padding behind the tensors that it pads."""
    return SimpleNamespace(
        extend_seq_lens_cpu=lens,
        extend_prefix_lens_cpu=[0] * len(lens),
        out_cache_loc=torch.tensor([*slots, 0, 0]),
        req_pool_indices=torch.tensor([*rows, 0]),
        input_ids=torch.tensor([*tokens, 0, 0]),
        sampling_info=GREEDY,
    )


def sample(telemetry: Telemetry, forward: Any, logits: torch.Tensor, tokens: list[int], context: Any) -> Any:
    telemetry.before_sampling(logits, forward.sampling_info)
    return telemetry.after_sampling(forward, torch.tensor(tokens), context)


def test_a_sampler_that_measures_as_it_draws() -> None:
    """Its readings are handed on as they are; the columns at hand are offered to it, and nothing is kept afterwards."""
    telemetry = make_telemetry()
    columns, readings = torch.ones(2, 4), torch.arange(10.0).view(5, 2)
    asked: list[Any] = []
    telemetry.recall_columns = lambda logits: asked.append(logits) or columns
    logits, forward = torch.zeros(2, VOCAB), forward_batch([1, 1], [1, 2], [0, 1], [1, 1])
    telemetry.before_sampling(logits, forward.sampling_info, measured=True)
    assert telemetry.own is None
    assert telemetry.own_columns is columns
    assert asked == [logits]
    telemetry.readings = readings
    result = telemetry.after_sampling(forward, torch.tensor([1, 1]), None)
    assert result.values.tolist() == readings[:4].tolist()
    assert (telemetry.readings, telemetry.own_columns) == (None, None)


@given(st.data())
def test_a_request_leaves_the_truth_in_its_slots(data: st.DataObject) -> None:
    """Prefill in chunks of any length, then decode: each slot ends with what a walk over the tokens gives it."""
    tokens = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=10))
    prompt = data.draw(st.integers(1, len(tokens) - 1))
    cuts = sorted(data.draw(st.sets(st.integers(1, prompt), max_size=3)) | {0, prompt})
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = torch.tensor(3.0 * generator.normal(size=(len(tokens), VOCAB)), dtype=torch.float32)
    slots = (generator.permutation(SLOTS - 1) + 1)[: len(tokens)].tolist()
    telemetry, before, row = make_telemetry(), make_telemetry(), 3
    req = request(tokens[:prompt], prompt)
    for begin, end in itertools.pairwise(cuts):
        req.extend_end = end
        forward = forward_batch([end - begin], slots[begin:end], [row], tokens[begin:end])
        with telemetry.step(batch_of([req])):
            context = telemetry.context
            telemetry.score_prompt(forward, logits[begin:end], lambda hidden: hidden)
        # What is sampled after a chunk that is not the last is thrown away; it must leave no trace.
        sampled = tokens[end] if end == prompt else (tokens[end] + 1) % VOCAB
        sample(telemetry, forward, logits[end - 1 : end].clone(), [sampled], context)
    for at in range(prompt, len(tokens) - 1):
        forward = forward_batch([], [slots[at]], [row], [tokens[at]])
        sample(telemetry, forward, logits[at : at + 1].clone(), [tokens[at + 1]], None)
    expected_surprisal = store_of(before).surprisal_nats.tolist()
    expected_entropy = store_of(before).entropy_nats.tolist()
    surprisal = math.nan
    for at in range(max(prompt, len(tokens) - 1)):
        expected_surprisal[slots[at]] = surprisal
        expected_entropy[slots[at]] = reference.one_row(logits[at].tolist()).entropy_nats
        surprisal = reference.surprisal(logits[at].tolist(), tokens[at + 1])
    pending = store_of(before).pending_surprisal_nats.tolist()
    pending[row] = surprisal
    store = store_of(telemetry)
    np.testing.assert_allclose(store.surprisal_nats.numpy(), expected_surprisal, **FLOAT32)
    np.testing.assert_allclose(store.entropy_nats.numpy(), expected_entropy, **FLOAT32)
    np.testing.assert_allclose(store.pending_surprisal_nats.numpy(), pending, **FLOAT32)


def test_readings_of_sampled_tokens() -> None:
    """Entropy, varentropy, surprisal and sampled entropy by row; a broken row and an illegal token are unknown."""
    telemetry = make_telemetry()
    logits = torch.tensor(
        [[0.0, 1.0, 2.0, 3.0, 4.0], [0.0, math.nan, 0.0, 0.0, 0.0], [0.0, -math.inf, 0, 0, 0]]
    )
    readings = sample(telemetry, forward_batch([], [1, 2, 3], [0, 1, 2], []), logits, [2, 0, 1], None)
    truth = reference.one_row(logits[0].tolist())
    nothing = [math.nan] * 4
    expected = [
        [truth.entropy_nats, truth.varentropy, reference.surprisal(logits[0].tolist(), 2), 0.0],
        nothing,
        [math.log(4), 0.0, math.nan, 0.0],
    ]
    np.testing.assert_allclose(readings.values.T.numpy(), expected, **FLOAT32)
    assert readings.recorder is telemetry.recorder
    assert readings.prompts == {}


def test_a_mixed_batch_keeps_its_requests_apart() -> None:
    """A final chunk, a middle chunk and a decode row in one batch: only the middle one carries on unsampled."""
    telemetry = make_telemetry()
    store = store_of(telemetry)
    decoding = request([1, 2, 3], 3)
    with telemetry.step(batch_of([decoding])):
        pass  # it has run before: its pending surprisal is that of the token that was sampled then
    store.pending_surprisal_nats[4] = 0.25
    reqs = [request([0, 1], 2), request([2, 3, 4], 2), decoding]
    logits = torch.randn(5, VOCAB)
    forward = forward_batch([2, 2, 1], [10, 11, 20, 21, 30], [1, 2, 4], [0, 1, 2, 3, 3])
    with telemetry.step(batch_of(reqs)):
        context = telemetry.context
        telemetry.score_prompt(forward, logits, lambda hidden: hidden)
    sample(telemetry, forward, logits[[1, 3, 4]], [0, 1, 2], context)

    def truth(row: int, token: int) -> float:
        return reference.surprisal(logits[row].tolist(), token)

    slots = [10, 11, 20, 21, 30]
    np.testing.assert_allclose(
        store.surprisal_nats[slots].numpy(), [math.nan, truth(0, 1), math.nan, truth(2, 3), 0.25], **FLOAT32
    )
    np.testing.assert_allclose(
        store.entropy_nats[slots].numpy(),
        [row.entropy_nats for row in reference.row_statistics(logits.tolist())],
        **FLOAT32,
    )
    np.testing.assert_allclose(
        store.pending_surprisal_nats[[1, 2, 4]].numpy(), [truth(1, 0), truth(3, 4), truth(4, 2)], **FLOAT32
    )


def test_nothing_stale_remains_where_nothing_is_sampled() -> None:
    """After a request for its prompt alone, the entropy behind its last token is unknown, not its predecessor's."""
    telemetry = make_telemetry()
    with telemetry.step(batch_of([request([1, 2], 2)])):
        telemetry.score_prompt(
            forward_batch([2], [10, 11], [1], [1, 2]), torch.randn(2, VOCAB), lambda hidden: hidden
        )
    assert store_of(telemetry).entropy_nats[11].isnan()
    assert store_of(telemetry).entropy_nats[10] < math.log(VOCAB)


def test_forget_unscored_marks_exactly_the_slots_of_the_batch() -> None:
    """Slots and rows of the batch become unknown, its padding and everybody else's stay."""
    telemetry, before = make_telemetry(), make_telemetry()
    forward = forward_batch([2, 1], [10, 11, 20], [1, 2], [0, 1, 2])
    with telemetry.step(batch_of([request([0, 1], 2), request([2], 1)])):
        telemetry.forget_unscored(forward)
    for name, gone in (("surprisal_nats", [10, 11, 20]), ("entropy_nats", [10, 11, 20]),
                       ("pending_surprisal_nats", [1, 2])):  # fmt: skip
        expected = getattr(store_of(before), name).numpy()
        expected[gone] = math.nan
        np.testing.assert_array_equal(getattr(store_of(telemetry), name).numpy(), expected)
    assert telemetry.counters.unscored_prompt_tokens == 3
    assert telemetry.counters.scored_prompt_tokens == 0


def test_forget_unscored_leaves_a_scored_batch_and_a_decode_alone() -> None:
    telemetry = make_telemetry()
    forward = forward_batch([2], [10, 11], [1], [0, 1])
    with telemetry.step(batch_of([request([0, 1], 2)])):
        telemetry.score_prompt(forward, torch.randn(2, VOCAB), lambda hidden: hidden)
        scored = store_of(telemetry).entropy_nats.clone()
        telemetry.forget_unscored(forward)
    with telemetry.step(batch_of([request([0, 1], 2)], extend=False)):
        telemetry.forget_unscored(forward)
    torch.testing.assert_close(store_of(telemetry).entropy_nats, scored, equal_nan=True)
    assert telemetry.counters.unscored_prompt_tokens == 0


def test_the_context_lasts_for_one_step() -> None:
    """Also when the step fails: the next one must not see its rows."""
    telemetry = make_telemetry()

    def failing_step() -> None:
        with telemetry.step(batch_of([request([1], 1)])):
            assert isinstance(telemetry.context, StepContext)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing_step()
    assert telemetry.context is None
    with telemetry.step(batch_of([request([1], 1)], extend=False)):
        assert telemetry.context is None
    with telemetry.step(None):
        assert telemetry.context is None


def test_counters_of_a_prefix_hit() -> None:
    """A hit of three tokens, of which one runs again beside two new ones; a second chunk inherits nothing more."""
    telemetry = make_telemetry()
    telemetry.tree_cache = SimpleNamespace(path_device_indices=torch.tensor)
    req = request([0, 1, 2, 3, 4, 0], 5)
    req.prefix_len, req.last_node = 2, [40, 41, 42]
    state_of(req).boundary_given_back = True
    forward = forward_batch([3], [50, 51, 52], [1], [2, 3, 4])
    forward.extend_prefix_lens_cpu = [2]
    with telemetry.step(batch_of([req])):
        telemetry.score_prompt(forward, torch.randn(3, VOCAB), lambda hidden: hidden)
    counters = telemetry.counters
    assert (counters.inherited_prompt_tokens, counters.boundary_recomputed_tokens) == (2, 1)
    assert counters.scored_prompt_tokens == 3
    assert float(store_of(telemetry).surprisal_nats[50]) == 1042.0
    req.extend_end, forward.extend_prefix_lens_cpu = 6, [5]
    forward.extend_seq_lens_cpu = [1]
    with telemetry.step(batch_of([req])):
        telemetry.score_prompt(forward, torch.randn(1, VOCAB), lambda hidden: hidden)
    assert (counters.inherited_prompt_tokens, counters.boundary_recomputed_tokens) == (2, 1)


def test_prompt_readings_come_from_the_request_s_slots() -> None:
    """Of the row that asked, in the order of its tokens."""
    telemetry = make_telemetry()
    asked = request([1, 2, 3], 3, {"entropic": {"return_prompt_surprisal": True}})
    forward = forward_batch([1, 3], [10, 20, 21, 22], [1, 2], [0, 1, 2, 3])
    with telemetry.step(batch_of([request([0], 1), asked])):
        readings = telemetry.prompt_readings(forward, telemetry.context)
    assert list(readings) == [1]
    np.testing.assert_array_equal(
        readings[1].numpy(), [[1020.0, 1021.0, 1022.0], [math.nan, 1000.0 + SLOTS + 20, 1000.0 + SLOTS + 21]]
    )


def test_without_a_store_only_sampled_tokens_are_read() -> None:
    telemetry = make_telemetry(store=False)
    forward = forward_batch([2], [10, 11], [1], [0, 1])
    asked = request([0, 1], 2, {"entropic": {"return_prompt_surprisal": True}})
    with telemetry.step(batch_of([asked])):
        context = telemetry.context
        telemetry.score_prompt(forward, torch.zeros(2, VOCAB), lambda hidden: hidden)
        telemetry.forget_unscored(forward)
    readings = sample(telemetry, forward, torch.zeros(1, VOCAB), [0], context)
    assert readings.prompts == {}
    assert float(readings.values[2, 0]) == pytest.approx(math.log(VOCAB))
    assert telemetry.counters == Counters()


def test_installed_is_what_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_installed", None)
    assert module.installed() is None
    telemetry = make_telemetry()
    module.install(telemetry)
    assert module.installed() is telemetry
    module.install(None)
    assert module.installed() is None
