"""What the kernels refuse, with an exception that Python can catch; and afterwards they work as before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import kernel_checks as checks
import kernel_decoders as decoders
import numpy as np
import pytest
import torch

from sgl_entropic_kernels.native import library

X = np.ones((3, 32), np.float32)
I0 = np.zeros(0, np.int64)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def weight(n: int = 8, k: int = 32, form: str = "lossless") -> Any:
    return library().pack(checks.matrix_of("float32", n, k, 1), form)


def attention(**changed: Any) -> None:
    """Two requests of 5 and 3 tokens on pages of 4, with a change."""
    arguments: dict[str, Any] = {
        "q": zeros(2, 4, 16), "k_cache": zeros(20, 2, 16), "v_cache": zeros(20, 2, 16), "kv_indptr": ints(0, 2, 3),
        "kv_indices": ints(0, 3, 4), "kv_last_page_len": ints(1, 3), "page_size": 4, "scale": 1.0, "out": zeros(2, 4, 16),
    }  # fmt: skip
    library().paged_attention(**(arguments | changed))


def rope(**changed: Any) -> None:
    arguments: dict[str, Any] = {
        "qkv": zeros(2, 64), "positions": ints(0, 9), "slots": ints(4, 0), "table": zeros(10, 16), "neox": True,
        "k_cache": zeros(5, 1, 16), "v_cache": zeros(5, 1, 16),
    }  # fmt: skip
    library().rope_write_kv(**(arguments | changed))


def head(**changed: Any) -> None:
    library().lm_head(**({"x": X, "weight": weight()} | changed))


def linear(**changed: Any) -> None:
    library().linear(**({"x": X, "weight": weight(), "out": zeros(3, 8)} | changed))


def norm(**changed: Any) -> None:
    library().rms_norm(**({"x": X, "weight": X[0], "eps": 1e-6, "out": zeros(3, 32)} | changed))


def decoder(**changed: Any) -> Any:
    arguments: dict[str, Any] = {
        "embedding": weight(9, 32), "final_norm": zeros(32), "q_heads": 2, "kv_heads": 1, "head_dim": 16,
        "intermediate": 48, "eps": 1e-6, "head_eps": 1e-6, "scale": 1.0, "window": -1, "logit_cap": 0.0,
        "rope_table": zeros(10, 16), "neox": True,
    }  # fmt: skip
    return library().Decoder(**(arguments | changed))


def layer(**changed: Any) -> None:
    arguments: dict[str, Any] = {
        "qkv": weight(64, 32), "o": weight(32, 32), "gate_up": weight(96, 32), "down": weight(32, 48),
        "input_norm": zeros(32), "post_norm": zeros(32),
    }  # fmt: skip
    decoder().add_layer(**(arguments | changed))


def forward(**changed: Any) -> None:
    """Two requests, of 3 tokens and of 1, that are all computed."""
    pair = decoders.make(library(), "llama", 1)
    arguments: dict[str, Any] = {
        "ids": ints(0, 1, 2, 3), "positions": ints(0, 1, 2, 0), "out_slots": ints(5, 6, 7, 8),
        "kv_indptr": ints(0, 3, 4), "kv_slots": ints(5, 6, 7, 8), "q_indptr": ints(0, 3, 4), "hidden_states": zeros(4, 48),
    }  # fmt: skip
    pair.fast.forward(**(arguments | changed))


def caches(slots: int, **changed: Any) -> Any:
    options = SimpleNamespace(**({"heads": 2, "d": 16, "dtype": np.float32} | changed))
    return np.zeros((slots, options.heads, options.d), options.dtype)


def set_cache(k: list[Any], v: list[Any]) -> None:
    decoders.make(library(), "llama", 1).fast.set_cache(k, v)


REFUSED: dict[str, Any] = {
    "pack float64": lambda: library().pack(np.ones((2, 2)), "float32"),
    "pack a vector": lambda: library().pack(zeros(4), "float32"),
    "pack nothing": lambda: library().pack(zeros(0, 4), "float32"),
    "pack rows of nothing": lambda: library().pack(zeros(4, 0), "float32"),
    "pack an unknown format": lambda: weight(form="int4"),
    "integer products of float32": lambda: library().pack(X, "float32", True),
    "integer products of lossless": lambda: library().pack(X, "lossless", True),
    "pack columns": lambda: library().pack(X.T, "float32"),
    "row -1": lambda: weight().rows(ints(-1), zeros(1, 32)),
    "row n": lambda: weight().rows(ints(8), zeros(1, 32)),
    "rows into too little": lambda: weight().rows(ints(1, 2), zeros(1, 32)),
    "rows by int32": lambda: weight().rows(np.zeros(1, np.int32), zeros(1, 32)),
    "linear of float64": lambda: linear(x=np.ones((3, 32))),
    "linear of bfloat16": lambda: linear(x=torch.ones(3, 32, dtype=torch.bfloat16)),
    "linear of a meta tensor": lambda: linear(x=torch.ones(3, 32, device="meta")),
    "linear of a sparse tensor": lambda: linear(x=torch.ones(3, 32).to_sparse()),
    "linear of columns": lambda: linear(x=np.ones((32, 3), np.float32).T),
    "linear of every second": lambda: linear(x=np.ones((3, 64), np.float32)[:, ::2]),
    "linear of another k": lambda: linear(x=zeros(3, 31)),
    "linear into too few rows": lambda: linear(out=zeros(2, 8)),
    "linear into too few columns": lambda: linear(out=zeros(3, 7)),
    "linear into what is read only": lambda: linear(out=np.broadcast_to(zeros(3, 1), (3, 8))),
    "linear with a short bias": lambda: linear(bias=zeros(7)),
    "linear with a bias of rows": lambda: linear(bias=zeros(1, 8)),
    "linear of lists": lambda: linear(x=[[1.0] * 32]),
    "linear without a weight": lambda: linear(weight=None),
    "linear by an array": lambda: linear(weight=zeros(8, 32)),
    "targets -1": lambda: head(targets=ints(0, -1, 0), target_logits=zeros(3)),
    "targets n": lambda: head(targets=ints(0, 8, 0), target_logits=zeros(3)),
    "targets without their logits": lambda: head(targets=ints(0, 1, 2)),
    "too few targets": lambda: head(targets=ints(0, 1), target_logits=zeros(2)),
    "logits too small": lambda: head(logits=zeros(3, 7)),
    "statistics too small": lambda: head(statistics=zeros(3, 3)),
    "a norm of another size": lambda: norm(weight=zeros(31)),
    "a norm into another shape": lambda: norm(out=zeros(3, 31)),
    "a norm with another residual": lambda: norm(residual=zeros(2, 32)),
    "silu of an odd size": lambda: library().silu_mul(zeros(2, 7), zeros(2, 3)),
    "silu of other rows": lambda: library().silu_mul(zeros(2, 8), zeros(3, 4)),
    "position -1": lambda: rope(positions=ints(0, -1)),
    "position beyond the table": lambda: rope(positions=ints(0, 10)),
    "slot -1": lambda: rope(slots=ints(-1, 0)),
    "slot beyond the cache": lambda: rope(slots=ints(5, 0)),
    "too few slots": lambda: rope(slots=ints(1)),
    "an odd rotary_dim": lambda: rope(table=zeros(10, 15)),
    "a rotary_dim above head_dim": lambda: rope(table=zeros(10, 18)),
    "qkv without q": lambda: rope(qkv=zeros(2, 32)),
    "qkv of broken heads": lambda: rope(qkv=zeros(2, 65)),
    "rope with two dtypes": lambda: rope(v_cache=caches(5, heads=1, dtype=np.uint16)),
    "rope with two shapes": lambda: rope(v_cache=caches(6, heads=1)),
    "page -1": lambda: attention(kv_indices=ints(0, -1, 4)),
    "page beyond the cache": lambda: attention(kv_indices=ints(0, 5, 4)),
    "page past any sum": lambda: attention(kv_indices=ints(0, 2**62, 4)),
    "an empty last page": lambda: attention(kv_last_page_len=ints(0, 3)),
    "an overfull last page": lambda: attention(kv_last_page_len=ints(5, 3)),
    "page_size 0": lambda: attention(page_size=0),
    "page_size -4": lambda: attention(page_size=-4),
    "kv_indptr of nothing": lambda: attention(kv_indptr=I0),
    "kv_indptr not from 0": lambda: attention(kv_indptr=ints(1, 2, 3)),
    "kv_indptr falling": lambda: attention(kv_indptr=ints(0, 4, 3)),
    "kv_indptr too short": lambda: attention(kv_indptr=ints(0, 1, 2)),
    "kv_indptr too long": lambda: attention(kv_indptr=ints(0, 2, 4)),
    "q_indptr falling": lambda: attention(q_indptr=ints(0, 3, 2)),
    "q_indptr for other requests": lambda: attention(q_indptr=ints(0, 2)),
    "more queries than tokens": lambda: attention(
        q=zeros(7, 4, 16), out=zeros(7, 4, 16), q_indptr=ints(0, 6, 7)
    ),
    "queries without requests": lambda: attention(q=zeros(3, 4, 16), out=zeros(3, 4, 16)),
    "q_heads not a multiple": lambda: attention(q=zeros(2, 3, 16), out=zeros(2, 3, 16)),
    "another head_dim": lambda: attention(q=zeros(2, 4, 32), out=zeros(2, 4, 32)),
    "head_dim 24": lambda: attention(
        q=zeros(2, 4, 24), out=zeros(2, 4, 24), k_cache=caches(20, d=24), v_cache=caches(20, d=24)
    ),
    "no KV heads": lambda: attention(k_cache=caches(20, heads=0), v_cache=caches(20, heads=0)),
    "a cache of float16": lambda: attention(
        k_cache=caches(20, dtype=np.float16), v_cache=caches(20, dtype=np.float16)
    ),
    "a cache of bfloat16 itself": lambda: attention(k_cache=torch.zeros(20, 2, 16, dtype=torch.bfloat16)),
    "a cache with holes": lambda: attention(k_cache=caches(40)[::2]),
    "another out": lambda: attention(out=zeros(2, 4, 32)),
    "another lse": lambda: attention(lse=zeros(2, 2)),
    "too few masses": lambda: attention(page_mass=zeros(2)),
    "masses of many queries": lambda: attention(
        q=zeros(3, 4, 16), out=zeros(3, 4, 16), q_indptr=ints(0, 2, 3), page_mass=zeros(3)
    ),
    "a negative logit_cap": lambda: attention(logit_cap=-1.0),
    "a logit_cap that is no number": lambda: attention(logit_cap=float("nan")),
    "0 threads": lambda: library().set_threads(0),
    "too many threads": lambda: library().set_threads(1025),
    "a decoder without embedding": lambda: decoder(embedding=None),
    "a decoder of broken groups": lambda: decoder(q_heads=3, kv_heads=2),
    "a decoder with head_dim 20": lambda: decoder(head_dim=20),
    "a decoder with an odd table": lambda: decoder(rope_table=zeros(10, 15)),
    "a decoder with another norm": lambda: decoder(final_norm=zeros(31)),
    "a layer without a product": lambda: layer(o=None),
    "a layer with another qkv": lambda: layer(qkv=weight(65, 32)),
    "a layer with another down": lambda: layer(down=weight(32, 47)),
    "a layer with another bias": lambda: layer(qkv_bias=zeros(63)),
    "a layer with one head norm": lambda: layer(q_norm=zeros(16)),
    "too few caches": lambda: set_cache([caches(9)], [caches(9)]),
    "K without V": lambda: set_cache([caches(9)] * 2, [caches(9)]),
    "caches of two sizes": lambda: set_cache([caches(9), caches(8)], [caches(9), caches(8)]),
    "caches of other heads": lambda: set_cache([caches(9, heads=1)] * 2, [caches(9, heads=1)] * 2),
    "caches with holes in rows": lambda: set_cache(
        [caches(9, d=32)[:, :, :16]] * 2, [caches(9, d=32)[:, :, ::2]] * 2
    ),
    "caches of rows at other lengths": lambda: set_cache(
        [zeros(9, 2, 24)[:, :, :16]] * 2, [zeros(9, 2, 24)[:, :, :16]] * 2
    ),
    "caches of one row": lambda: set_cache(
        [np.broadcast_to(zeros(1, 1, 16), (9, 2, 16))] * 2, [np.broadcast_to(zeros(1, 1, 16), (9, 2, 16))] * 2
    ),
    "caches that lie unlike": lambda: set_cache([zeros(2, 9, 16).transpose(1, 0, 2)] * 2, [caches(9)] * 2),
    "caches of columns": lambda: set_cache([caches(9, d=32)[:, :, ::2]] * 2, [caches(9)] * 2),
    "id -1": lambda: forward(ids=ints(0, 1, 2, -1)),
    "id beyond the vocabulary": lambda: forward(ids=ints(0, 1, 2, decoders.VOCABULARY)),
    "too few ids": lambda: forward(ids=ints(0, 1, 2)),
    "a position beyond the rope table": lambda: forward(positions=ints(0, 1, 2, decoders.SLOTS)),
    "out_slot -1": lambda: forward(out_slots=ints(5, 6, 7, -1)),
    "out_slot beyond the caches": lambda: forward(out_slots=ints(5, 6, 7, decoders.SLOTS)),
    "kv_slot -1": lambda: forward(kv_slots=ints(5, 6, -1, 8)),
    "kv_slot beyond the caches": lambda: forward(kv_slots=ints(5, 6, decoders.SLOTS, 8)),
    "kv_indptr of no request": lambda: forward(kv_indptr=I0),
    "more new tokens than tokens": lambda: forward(kv_indptr=ints(0, 2, 4)),
    "q_indptr of fewer tokens": lambda: forward(q_indptr=ints(0, 2, 3)),
    "q_indptr that falls": lambda: forward(q_indptr=ints(0, 5, 4)),
    "hidden states of another size": lambda: forward(hidden_states=zeros(4, 47)),
    "hidden states of too few": lambda: forward(hidden_states=zeros(3, 48)),
    "a decoder that nobody made": lambda: library().Decoder.__new__(library().Decoder).set_cache([], []),
}


@pytest.mark.filterwarnings("ignore:nanobind. attempted to access an uninitialized instance:RuntimeWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_and_the_library_works_on(native, name: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        REFUSED[name]()
    checks.check_lossless(native, "int8", 6, 20, 64, 1)
    checks.check_attention(native, checks.paged([9, 1], None, (2, 1, 16), 4, 1, bf16=False), checks.PLAIN)


@pytest.mark.parametrize("accepted", [attention, rope, head, linear, norm, layer, forward, decoder])
def test_what_the_refused_arguments_differ_from_is_accepted(native, accepted) -> None:
    result = accepted()
    assert result is None or isinstance(result, native.Decoder)


@pytest.mark.parametrize(("call", "changed", "said"), [
    (attention, {"kv_indices": ints(0, 5, 4)}, r"kv_indices\[1\] is 5; accepted: 0 to 4"),
    (rope, {"positions": ints(0, 10)}, r"positions\[1\] is 10; accepted: 0 to 9"),
    (forward, {"ids": ints(0, 1, 2, -1)}, r"ids\[3\] is -1; accepted: 0 to 56"),
])  # fmt: skip
def test_a_refusal_names_the_argument_the_value_and_what_is_accepted(call, changed, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call(**changed)


def test_a_decoder_has_no_cache_until_it_is_given_one(native) -> None:
    step = decoders.step_of([np.arange(3)], [3], [3])
    pair = decoders.make(native, "llama", 1)
    pair.fast.add_layer(*pair.weights[0])  # a layer more: what was set is no longer all
    with pytest.raises(ValueError, match="set_cache"):
        pair.forward(step, ints(0, 1, 2))


def test_refused_caches_leave_the_ones_before(native) -> None:
    pair = decoders.make(native, "llama", 1)
    k, v = [caches(decoders.SLOTS) for _ in range(2)], [caches(decoders.SLOTS) for _ in range(2)]
    with pytest.raises(ValueError, match="equally many slots"):
        pair.fast.set_cache([k[0], caches(7)], [v[0], caches(7)])
    pair.forward(decoders.step_of([np.arange(3)], [3], [3]), ints(0, 1, 2))
    assert not k[0].any()
    assert all(np.isfinite(cache[:3]).all() for cache in pair.caches)
