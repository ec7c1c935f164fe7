"""A step goes through the one call only when that computes all that was asked for, and is counted either way."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgl_entropic.runtime.cpu import decoder as module
from sgl_entropic.runtime.cpu.attention import PagedCpuAttnBackend, page_lists
from sgl_entropic.runtime.cpu.decoder import FusedDecoder, UnfusableError

HIDDEN, POSITIONS = 8, 16


class Native:
    """Stands for the compiled decoder; writes ones."""

    def __init__(self) -> None:
        self.steps: list[tuple[torch.Tensor, ...]] = []

    def forward(self, *arguments: torch.Tensor) -> None:
        self.steps.append(arguments)
        arguments[-1].fill_(1.0)


def layer() -> Any:
    made = torch.nn.Module()
    made.self_attn, made.mlp = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    return made


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's current attention backend, with the lists of two requests."""
    made = PagedCpuAttnBackend.__new__(PagedCpuAttnBackend)
    table = torch.arange(2 * 32, dtype=torch.int32).view(2, 32)
    made.forward_metadata = page_lists(table, [0, 1], [5, POSITIONS], [1, 2])
    monkeypatch.setattr(module, "get_attn_backend", lambda: made)
    return made


@pytest.fixture
def decoder(backend: Any) -> FusedDecoder:
    made = FusedDecoder.__new__(FusedDecoder)
    made._body = SimpleNamespace(
        layers=[layer(), layer()], layers_to_capture=[], config=SimpleNamespace(hidden_size=HIDDEN)
    )
    made._modules_forward = lambda *arguments: ("modules", arguments)
    made._native = Native()
    made._positions = POSITIONS
    made._attached = True
    made.fused_steps = made.fused_tokens = made.module_steps = 0
    made.last_backend = ""
    return made


IDS = torch.tensor([3, 1, 4], dtype=torch.int32)
BATCH = SimpleNamespace(out_cache_loc=torch.tensor([7, 8, 9], dtype=torch.int32))


def step(decoder: FusedDecoder, **more: Any) -> Any:
    arguments: dict[str, Any] = {
        "input_ids": IDS,
        "positions": torch.arange(3),
        "forward_batch": BATCH,
        **more,
    }
    return decoder.forward(**arguments)


def test_an_ordinary_step_is_one_call(decoder: FusedDecoder, backend: Any) -> None:
    hidden = step(decoder)
    assert torch.equal(hidden, torch.ones(3, HIDDEN))
    ids, positions, slots, *lists, out = decoder._native.steps[0]
    assert (ids.tolist(), positions.tolist(), slots.tolist()) == ([3, 1, 4], [0, 1, 2], [7, 8, 9])
    assert {tensor.dtype for tensor in (ids, positions, slots, *lists)} == {torch.int64}
    metadata = backend.forward_metadata
    assert all(
        mine is its
        for mine, its in zip(lists, (metadata.kv_indptr, metadata.kv_indices, metadata.q_indptr), strict=True)
    )
    assert out is hidden
    assert (decoder.fused_steps, decoder.fused_tokens, decoder.module_steps) == (1, 3, 0)
    assert decoder.last_backend == "fused"


def hook(decoder: FusedDecoder, part: str) -> None:
    first = decoder._body.layers[0]
    (first if part == "layer" else getattr(first, part)).register_forward_hook(lambda *arguments: None)


@pytest.mark.parametrize(
    "change",
    [
        lambda decoder, backend: setattr(decoder, "_attached", False),
        lambda decoder, backend: setattr(backend, "forward_metadata", None),
        lambda decoder, backend: setattr(decoder, "_positions", POSITIONS - 1),
        lambda decoder, backend: decoder._body.layers_to_capture.append(1),
        lambda decoder, backend: hook(decoder, "layer"),
        lambda decoder, backend: hook(decoder, "self_attn"),
        lambda decoder, backend: hook(decoder, "mlp"),
    ],
    ids=["no pool", "no lists", "beyond the rope table", "captured layers", "hook", "hook 2", "hook 3"],
)
def test_what_the_call_does_not_do_is_the_modules(
    decoder: FusedDecoder, backend: Any, change: Callable[[FusedDecoder, Any], None]
) -> None:
    change(decoder, backend)
    assert step(decoder)[0] == "modules"
    assert (decoder.fused_steps, decoder.module_steps, decoder.last_backend) == (0, 1, "modules")
    assert decoder._native.steps == []


@pytest.mark.parametrize(
    "more",
    [
        {"input_embeds": torch.zeros(3, HIDDEN)},
        {"pp_proxy_tensors": object()},
        {"input_ids": torch.empty(0, dtype=torch.int64)},
    ],
    ids=lambda more: next(iter(more)),
)
def test_other_inputs_are_the_modules(decoder: FusedDecoder, more: dict[str, Any]) -> None:
    """With every argument as it came."""
    name, arguments = step(decoder, **more)
    assert name == "modules"
    given = {"input_ids": IDS, "input_embeds": None, "pp_proxy_tensors": None, **more}
    assert arguments[0] is given["input_ids"]
    assert arguments[2] is BATCH
    assert arguments[3] is given["input_embeds"]
    assert arguments[4] is given["pp_proxy_tensors"]
    assert decoder._native.steps == []


def test_another_attention_backend_is_the_modules(
    decoder: FusedDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "get_attn_backend", lambda: SimpleNamespace(forward_metadata=object()))
    assert step(decoder)[0] == "modules"


def test_the_next_ordinary_step_is_fused_again(decoder: FusedDecoder) -> None:
    step(decoder, input_embeds=torch.zeros(3, HIDDEN))
    step(decoder)
    assert (decoder.fused_steps, decoder.module_steps, decoder.last_backend) == (1, 1, "fused")


@pytest.mark.parametrize("kind", ["a model of another family", "a model without a body"])
def test_a_model_that_cannot_be_fused_says_why(kind: str) -> None:
    """And keeps its forward; not every model calls its body ``model``."""
    model = torch.nn.Module()
    if kind == "a model of another family":
        model.model = torch.nn.Linear(1, 1)
    with pytest.raises(UnfusableError, match="Module is not one of LlamaForCausalLM"):
        FusedDecoder(model)
