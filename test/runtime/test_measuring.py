"""The hooks on the worker: inert without telemetry, in the right order with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgl_entropic.runtime import measuring as module
from sgl_entropic.runtime.auxiliary import DeviceReadings
from sgl_entropic.runtime.measuring import (
    around_forward,
    around_forward_batch_generation,
    around_init_next_round_input,
    around_logits_processor,
    around_sample,
)

HOOKS = [
    around_forward_batch_generation,
    around_forward,
    around_logits_processor,
    around_sample,
    around_init_next_round_input,
]
CONTEXT = object()


class Telemetry:
    """Notes what the hooks do with it."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.context: Any = None
        self.store: Any = object()
        self.recorder: Any = object()
        self.prompts: dict[int, torch.Tensor] = {}

    def step(self, batch: Any) -> Any:
        return self

    def __enter__(self) -> None:
        self.context = CONTEXT

    def __exit__(self, *failure: object) -> None:
        self.context = None

    def forget_unscored(self, forward_batch: Any) -> None:
        self.log.append("forget")

    def score_prompt(self, metadata: Any, hidden: Any, logits_of: Any, statistics_of: Any = None) -> None:
        self.log.append(("score", logits_of(hidden), statistics_of))

    def before_sampling(self, logits: Any, info: Any, *, measured: bool) -> None:
        self.log.append(("before", info, measured))

    def after_sampling(self, forward_batch: Any, token_ids: Any, context: Any) -> DeviceReadings:
        self.log.append(("after", token_ids, context))
        return DeviceReadings(self.recorder, None)

    def settle_unsampled(self, batch: Any, logits: Any, context: Any) -> None:
        self.log.append(("settle", context))

    def prompt_readings(self, batch: Any, context: Any) -> dict[int, torch.Tensor]:
        self.log.append(("prompts", context))
        return self.prompts


# A sampler that measures as it draws where log-probabilities are wanted, so that a test sees what it was asked.
RUNNER = SimpleNamespace(sampler=SimpleNamespace(draws=lambda logits, info: info is not None))
PLAIN = SimpleNamespace(sampling_info=None)


@pytest.fixture
def log() -> list[Any]:
    return []


@pytest.fixture
def telemetry(log: list[Any], monkeypatch: pytest.MonkeyPatch) -> Telemetry:
    made = Telemetry(log)
    monkeypatch.setattr(module, "installed", lambda: made)
    return made


def logits_output(rows: int = 1) -> Any:
    return SimpleNamespace(next_token_logits=torch.zeros(rows, 3), auxiliary_device_output=None)


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.__name__)
def test_without_telemetry_a_hook_only_calls_on(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every argument as it came, and nothing touched."""
    monkeypatch.setattr(module, "installed", lambda: None)
    arguments = (object(), logits_output(), object(), object(), object())
    seen: list[Any] = []

    def original(*args: Any, **kwargs: Any) -> str:
        seen.append((args, kwargs))
        return "result"

    assert hook(original, *arguments, extra=7) == "result"
    assert seen == [(arguments, {"extra": 7})]
    assert arguments[1].auxiliary_device_output is None


def test_sampling_is_measured_before_and_after(telemetry: Telemetry, log: list[Any]) -> None:
    """With the facts that the batch carries along, since the step may be over by then."""
    output, tokens = logits_output(), torch.tensor([2])
    batch = SimpleNamespace(sampling_info="info")
    with telemetry.step(None):
        around_forward(lambda runner, given: None, "runner", batch)

    def original(*args: Any) -> torch.Tensor:
        log.append("sample")
        return tokens

    assert around_sample(original, RUNNER, output, batch) is tokens
    assert log == ["forget", ("before", "info", True), "sample", ("after", tokens, CONTEXT)]
    assert isinstance(output.auxiliary_device_output, DeviceReadings)


@pytest.mark.parametrize("packed", [False, True])
def test_a_prompt_is_scored_by_the_model_s_own_lm_head(
    telemetry: Telemetry, log: list[Any], monkeypatch: pytest.MonkeyPatch, *, packed: bool
) -> None:
    """Before SGLang's own pass; a head that computes statistics without the logits is offered too."""
    from sglang.srt.layers.logits_processor import LogitsMetadata

    monkeypatch.setattr(LogitsMetadata, "from_forward_batch", lambda batch: "metadata")
    method = SimpleNamespace(target_statistics="statistics") if packed else SimpleNamespace()
    head, batch = SimpleNamespace(quant_method=method), SimpleNamespace(out_cache_loc=None)

    def lm_head(rows: Any, given: Any, metadata: Any, *, use_logits_buffer: bool) -> tuple[Any, ...]:
        assert given is head
        return rows, metadata, use_logits_buffer

    processor = SimpleNamespace(_get_logits=lm_head)
    with telemetry.step(None):
        around_logits_processor(lambda *args: log.append("sglang"), processor, "ids", "hidden", head, batch)
    assert log == [("score", ("hidden", "metadata", False), "statistics" if packed else None), "sglang"]


def test_a_decode_step_has_no_facts(telemetry: Telemetry, log: list[Any]) -> None:
    around_forward(lambda runner, given: None, "runner", SimpleNamespace())
    around_sample(lambda *args: torch.tensor([1]), RUNNER, logits_output(), PLAIN)
    assert log[-1][2] is None
    assert "forget" not in log


@pytest.mark.parametrize("logits", [None, torch.zeros(0, 3)])
def test_nothing_to_sample_is_nothing_to_measure(telemetry: Telemetry, log: list[Any], logits: Any) -> None:
    output = SimpleNamespace(next_token_logits=logits, auxiliary_device_output=None)
    assert around_sample(lambda *args: "tokens", "runner", output, SimpleNamespace()) == "tokens"
    assert log == []
    assert output.auxiliary_device_output is None


@pytest.mark.parametrize("prompts", [{}, {0: torch.zeros(2, 1)}])
def test_prompts_of_a_batch_that_samples_nothing(
    telemetry: Telemetry, log: list[Any], prompts: dict[int, torch.Tensor]
) -> None:
    telemetry.prompts = prompts
    result = SimpleNamespace(logits_output=logits_output())
    batch = SimpleNamespace(is_prefill_only=True)
    assert around_forward_batch_generation(lambda *args: result, "worker", batch) is result
    assert log == [("settle", CONTEXT), ("prompts", CONTEXT)]
    readings = result.logits_output.auxiliary_device_output
    assert (None if readings is None else readings.prompts) == (prompts or None)


def test_a_batch_that_samples_leaves_its_prompts_to_sampling(telemetry: Telemetry, log: list[Any]) -> None:
    result = SimpleNamespace(logits_output=logits_output())
    around_forward_batch_generation(lambda *args: result, "worker", SimpleNamespace(is_prefill_only=False))
    assert log == []


def test_other_auxiliary_outputs_are_kept(telemetry: Telemetry) -> None:
    output = logits_output()
    other = output.auxiliary_device_output = object()
    around_sample(lambda *args: torch.tensor([1]), RUNNER, output, PLAIN)
    first, second = output.auxiliary_device_output.outputs
    assert first is other
    assert isinstance(second, DeviceReadings)


@pytest.mark.parametrize(
    ("store", "tree", "given_back"),
    [(object(), object(), True), (None, object(), False), (object(), None, False)],
)
def test_a_page_is_given_back_when_there_is_a_store_and_a_tree(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, store: Any, tree: Any, *, given_back: bool
) -> None:
    """After SGLang has matched."""
    order: list[Any] = []
    telemetry.store = store
    monkeypatch.setattr(module, "give_back_boundary", lambda req, cache: order.append((req, cache)))
    around_init_next_round_input(lambda req, cache: order.append("matched"), "req", tree)
    assert order == (["matched", ("req", tree)] if given_back else ["matched"])
