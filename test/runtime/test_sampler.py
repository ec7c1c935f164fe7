"""The sampler measures what it is about to sample from, and gives SGLang everything unchanged."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.sampler import Sampler

from sgl_entropic.entropy.row_statistics import row_statistics
from sgl_entropic.runtime import sampler as module
from sgl_entropic.runtime.sampler import EntropicSampler
from sgl_entropic_kernels import reference

LOGITS = [[0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0]]


def sampling(*, greedy: bool = False, custom: bool = False) -> Any:
    return SimpleNamespace(
        is_all_greedy=greedy,
        temperatures=torch.tensor([[0.5], [1.0]]),
        top_ks=torch.tensor([100, 1], dtype=torch.int32),
        grammars=None,
        logit_bias=None,
        acc_additive_penalties=None,
        acc_scaling_penalties=None,
        penalizer_orchestrator=None,
        has_custom_logit_processor=custom,
        has_watermark_candidates=False,
    )


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Telemetry in the middle of a sampling step."""
    logits = torch.tensor(LOGITS)
    made = SimpleNamespace(
        sampled_entropy=None, own=(logits - logits.amax(-1, keepdim=True), row_statistics(logits))
    )
    monkeypatch.setattr(module, "installed", lambda: made)
    return made


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> EntropicSampler:
    """Ours on top of a SGLang that masks token 3 before sampling and then takes the likeliest token."""

    def preprocess(self: Any, logits: torch.Tensor, info: Any) -> torch.Tensor:
        return logits.index_fill(1, torch.tensor([3]), -math.inf)

    def sample(self: Any, probs: torch.Tensor, info: Any, *args: Any, **kwargs: Any) -> Any:
        return probs.argmax(-1), args, kwargs

    monkeypatch.setattr(Sampler, "_preprocess_logits", preprocess)
    monkeypatch.setattr(Sampler, "_sample_from_probs", sample)
    return EntropicSampler.__new__(EntropicSampler)


def test_rewritten_logits_are_measured_after_rewriting(sampler: EntropicSampler, telemetry: Any) -> None:
    """Here the mask of a custom processor, which takes the likeliest token away."""
    sampler._preprocess_logits(torch.tensor(LOGITS), sampling(custom=True))
    masked = reference.one_row([0.0, 1.0, 2.0, -math.inf], 0.5).entropy_nats
    assert telemetry.sampled_entropy.tolist() == pytest.approx([masked, 0.0], rel=1e-5)


def test_a_greedy_batch_is_a_point_mass(sampler: EntropicSampler, telemetry: Any) -> None:
    sampler._preprocess_logits(torch.tensor(LOGITS), sampling(greedy=True))
    assert telemetry.sampled_entropy.tolist() == [0.0, 0.0]


def test_a_mere_temperature_is_measured_at_the_probabilities(
    sampler: EntropicSampler, telemetry: Any
) -> None:
    info = sampling()
    sampler._preprocess_logits(torch.tensor(LOGITS), info)
    assert not hasattr(telemetry.sampled_entropy, "shape")
    sampler._sample_from_probs(torch.softmax(torch.tensor(LOGITS) / info.temperatures, -1), info)
    truth = reference.one_row(LOGITS[0], 0.5).entropy_nats
    assert telemetry.sampled_entropy.tolist() == pytest.approx([truth, 0.0], rel=1e-5)


def test_what_was_measured_before_is_kept(sampler: EntropicSampler, telemetry: Any) -> None:
    measured = telemetry.sampled_entropy = torch.tensor([1.0, 2.0])
    sampler._sample_from_probs(torch.full((2, 4), 0.25), sampling(custom=True))
    assert telemetry.sampled_entropy is measured


@pytest.mark.parametrize("measuring", [True, False])
def test_sglang_s_results_and_arguments_pass_unchanged(
    sampler: EntropicSampler, telemetry: Any, monkeypatch: pytest.MonkeyPatch, *, measuring: bool
) -> None:
    """Also where no telemetry is installed, as in warm-up."""
    if not measuring:
        monkeypatch.setattr(module, "installed", lambda: None)
    logits, probs = torch.tensor(LOGITS), torch.softmax(torch.tensor(LOGITS), -1)
    out = sampler._preprocess_logits(logits, sampling(custom=True))
    assert out.tolist() == [[0.0, 1.0, 2.0, -math.inf], [0.0, 0.0, 0.0, -math.inf]]
    tokens, args, kwargs = sampler._sample_from_probs(probs, sampling(), 1, positions=2)
    assert (tokens.tolist(), args, kwargs) == ([3, 0], (1,), {"positions": 2})
    assert torch.equal(probs, torch.softmax(torch.tensor(LOGITS), -1))


class Fast:
    """The CPU fast path, which draws token 2 of every row."""

    def __init__(self, *, able: bool = True) -> None:
        self.able, self.asked = able, []

    def draws(self, logits: torch.Tensor, info: Any) -> bool:
        return self.able

    def draw(self, logits: torch.Tensor, info: Any, own: Any, *, measured: bool, **more: Any) -> Any:
        self.asked.append((own, measured))
        return torch.full((len(logits),), 2), ("readings" if measured else None)


def forward(sampler: EntropicSampler, info: Any = None) -> Any:
    output = SimpleNamespace(next_token_logits=torch.tensor(LOGITS))
    return sampler.forward(output, info or sampling(), False, [], [], None)


@pytest.fixture
def stock(sampler: EntropicSampler, monkeypatch: pytest.MonkeyPatch) -> EntropicSampler:
    """Ours on top of a SGLang whose forward says so."""
    monkeypatch.setattr(Sampler, "forward", lambda self, *args, **kwargs: ("SGLang's", args[2]))
    object.__setattr__(sampler, "enable_deterministic", False)
    object.__setattr__(sampler, "rl_on_policy_target", None)
    return sampler


def test_the_cpu_fast_path_draws_and_measures(
    stock: EntropicSampler, telemetry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = Fast()
    monkeypatch.setattr(module, "fast_path", lambda: fast)
    telemetry.own_columns = "columns"
    assert forward(stock).tolist() == [2, 2]
    assert telemetry.readings == "readings"
    assert fast.asked == [("columns", True)]
    monkeypatch.setattr(module, "installed", lambda: None)
    assert forward(stock).tolist() == [2, 2]
    assert fast.asked[1] == (None, False)


@pytest.mark.parametrize("why", ["no fast path", "not able", "watermark", "deterministic", "on policy"])
def test_all_else_is_sglang_s(
    stock: EntropicSampler, telemetry: Any, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    fast = None if why == "no fast path" else Fast(able=why != "not able")
    monkeypatch.setattr(module, "fast_path", lambda: fast)
    object.__setattr__(stock, "enable_deterministic", why == "deterministic")
    object.__setattr__(stock, "rl_on_policy_target", "x" if why == "on policy" else None)
    info = sampling()
    info.has_watermark_candidates = why == "watermark"
    assert forward(stock, info) == ("SGLang's", False)
    assert fast is None or fast.asked == []
