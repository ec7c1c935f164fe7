"""The float64 definitions of a decoder against PyTorch, scipy's statistics, and the models of transformers."""

from __future__ import annotations

from typing import Any

import kernel_checks as checks
import numpy as np
import pytest
import torch
from torch.nn import functional

from sgl_entropic_kernels import reference, reference_ops

TOLERANCE = 1e-12  # float64


def doubles(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array, np.float64))


def test_bfloat16_rounds_as_torch_does() -> None:
    values = np.concatenate(
        [checks.normal(checks.generator(1), 5000) * s for s in (1.0, 1e-38, 1e30)] + [np.zeros(1, np.float32)]
    )
    ties = (np.arange(0x3F80, 0x3FA0, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    for single in (values.astype(np.float32), ties):
        expected = torch.from_numpy(single).bfloat16()
        assert (reference_ops.to_bfloat16(single) == expected.view(torch.uint16).numpy()).all()
        assert (
            reference_ops.from_bfloat16(reference_ops.to_bfloat16(single)) == expected.float().numpy()
        ).all()


def test_rows_are_those_of_torch() -> None:
    rng = checks.generator(1)
    x, weight, residual = checks.normal(rng, 5, 24), checks.normal(rng, 24), checks.normal(rng, 5, 24)
    normed, total = reference_ops.rms_norm(x, weight, 1e-5, residual)
    summed = doubles(x) + doubles(residual)
    checks.check_close(total, summed.numpy(), TOLERANCE)
    checks.check_close(normed, functional.rms_norm(summed, (24,), doubles(weight), 1e-5).numpy(), TOLERANCE)
    gate, up = (doubles(x) * 50.0).chunk(2, dim=1)
    checks.check_close(
        reference_ops.silu_mul(x.astype(np.float64) * 50.0), (functional.silu(gate) * up).numpy(), 1e-9
    )
    matrix = checks.normal(rng, 7, 24)
    expected = functional.linear(doubles(x), doubles(matrix), doubles(weight[:7]))
    checks.check_close(reference_ops.linear(x, matrix, weight[:7]), expected.numpy(), TOLERANCE)


def test_rounded_inputs_are_the_nearest_steps() -> None:
    x = checks.normal(checks.generator(1), 6, 50)
    x[2, :32] = 0.0
    rounded = reference_ops.round_inputs(x)
    assert (np.abs(rounded.codes) <= 127).all()
    assert (np.abs(rounded.codes[:, :32]).max(axis=1) == [127, 127, 0, 127, 127, 127]).all()
    checks.check_close(rounded.values(), x, 0.5001 * rounded.scales)


def test_statistics_are_those_of_the_row_by_row_definition() -> None:
    logits = checks.normal(checks.generator(1), 4, 60) * 5.0
    for got, row in zip(
        reference_ops.logit_statistics(logits), reference.row_statistics(logits), strict=True
    ):
        expected = np.array([row.max_logit, row.log_normalizer, row.entropy_nats, row.varentropy])
        checks.check_close(got, expected, 1e-11)


@pytest.mark.parametrize("window", [-1, 0, 5, 100])
@pytest.mark.parametrize("queries", [None, [7, 1, 40, 0]])
def test_attention_is_that_of_torch(window: int, queries: list[int] | None) -> None:
    lengths = [9, 1, 40, 3]
    case = checks.paged(lengths, queries, (6, 2, 16), 4, 1, bf16=False)
    got = reference_ops.paged_attention(
        case.q, case.k, case.v, case.pages, reference_ops.Scoring(0.3, window), case.q_indptr
    )
    starts = np.arange(5) if case.q_indptr is None else case.q_indptr
    for r, length in enumerate(lengths):
        q = doubles(case.q[starts[r] : starts[r + 1]]).transpose(0, 1)
        k, v = (doubles(cache[case.pages.slots(r)]).transpose(0, 1) for cache in (case.k, case.v))
        age = torch.arange(length - q.shape[1], length)[:, None] - torch.arange(length)[None, :]
        seen = (age >= 0) & ((age <= window) if window >= 0 else torch.tensor(True))
        expected = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=0.3, enable_gqa=True
        )
        checks.check_close(got.out[starts[r] : starts[r + 1]], expected.transpose(0, 1).numpy(), TOLERANCE)
        scores = (q @ k.repeat_interleave(3, 0).transpose(1, 2) * 0.3).masked_fill(~seen, -torch.inf)
        checks.check_close(got.lse[starts[r] : starts[r + 1]], scores.logsumexp(-1).T.numpy(), TOLERANCE)
        pages = got.page_mass[case.pages.indptr[r] : case.pages.indptr[r + 1]]
        mass = scores.softmax(-1).mean(0).sum(0) if q.shape[1] else torch.zeros(length, dtype=torch.float64)
        by_page = [part.sum().item() for part in mass.split(4)]
        checks.check_close(pages, np.array(by_page), TOLERANCE)


def test_a_capped_score_is_never_beyond_the_cap() -> None:
    case = checks.paged([30], None, (1, 1, 16), 4, 1, bf16=False)
    capped = reference_ops.paged_attention(
        case.q, case.k, case.v, case.pages, reference_ops.Scoring(1e6, -1, 2.0)
    )
    signs = np.sign(case.k[case.pages.slots(0), 0] @ case.q[0, 0])
    assert capped.lse[0, 0] == pytest.approx(np.log(np.exp(2.0 * signs).sum()), abs=1e-6)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_the_decoder_is_that_of_transformers(family: str) -> None:
    import transformers

    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "attn_implementation": "eager",
    }
    config = getattr(transformers, f"{family}Config")(**sizes, **heads)
    model = getattr(transformers, f"{family}Model")(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    ids = torch.arange(11) * 7 % 40
    with torch.no_grad():
        expected = model(ids[None]).last_hidden_state[0].numpy()

    state: dict[str, Any] = {name: value.numpy() for name, value in model.state_dict().items()}
    own = reference_ops.Decoder(
        state["embed_tokens.weight"], state["norm.weight"], 4, 2, 16, config.rms_norm_eps, reference_ops.Scoring(0.25),
        reference_ops.rope_table(20, 16), head_eps=config.rms_norm_eps,
    )  # fmt: skip
    own.layers += [layer_of(state, f"layers.{i}.") for i in range(2)]
    slots = np.arange(20)[::-1].copy()
    every, part = np.arange(11), np.array([0, 11])
    step = reference_ops.Step(every, slots[:11], part, slots[:11], part)
    caches = [np.zeros((20, 2, 16)) for _ in range(4)]
    # The table and transformers' own frequencies are float32.
    checks.check_close(own.forward(ids.numpy(), step, caches[:2], caches[2:]), expected, 1e-5)


def layer_of(state: dict[str, Any], prefix: str) -> reference_ops.Layer:
    """A layer from the names of transformers."""

    def of(*names: str) -> Any:
        found = [state[prefix + name] for name in names if prefix + name in state]
        return np.concatenate(found) if found else None

    attention = [f"self_attn.{part}_proj" for part in "qkv"]
    return reference_ops.Layer(
        of(*(f"{name}.weight" for name in attention)),
        of("self_attn.o_proj.weight"),
        of("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        of("mlp.down_proj.weight"),
        of("input_layernorm.weight"),
        of("post_attention_layernorm.weight"),
        of(*(f"{name}.bias" for name in attention)),
        q_norm=of("self_attn.q_norm.weight"),
        k_norm=of("self_attn.k_norm.weight"),
    )
