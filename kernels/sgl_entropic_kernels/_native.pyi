# Types of the extension module, built from ``kernels/src/bindings*.cpp``; the contracts are in ``kernels/src/ops.h``.
#
# An array is anything on the CPU that speaks DLPack or the buffer protocol, contiguous, of the dtype that the comment
# names: a torch tensor, a NumPy array. Nothing is converted. ``out`` arguments are written. A wrong dtype, number of
# dimensions, layout or device raises ``TypeError``; a wrong size or an index out of range ``ValueError``.

from typing import Any, Literal, TypeAlias

# float32.
Floats: TypeAlias = Any
# int64.
Indices: TypeAlias = Any
# [slots, kv_heads, head_dim], float32, or bfloat16 viewed as uint16; head_dim a multiple of 16. Slots or heads may come first
# in memory, as long as the numbers of a slot and head lie side by side.
Cache: TypeAlias = Any

# uint8.
Mask: TypeAlias = Any

# Keys, blocks, budget, sinks, recent, bonus, tilt. Of the first ``blocks`` blocks, the first ``sinks``, the last ``recent``,
# and up to ``reference_ops.layer_budgets`` in all, the mean of which is ``budget``, each KV head reads those of its largest
# ``reference_ops.block_scores``; of equals the later ones. ``bonus`` float32 [blocks]; NaN: read before all others. Attention
# below e^-87 of what each head pays most for is none at all.
Choice: TypeAlias = tuple[BlockKeys, int, int, int, int, Floats, float]

PackFormat: TypeAlias = Literal["float32", "lossless", "int8", "small"]

# The instruction set in use; ``RuntimeError`` when ``SGLANG_ENTROPIC_ISA`` names one that is not there.
def isa() -> str: ...

# The size of the team from now on, callers included: 1 to 1024.
def set_threads(threads: int) -> None: ...
def threads() -> int: ...

# Parallel regions that the present team has run.
def regions() -> int: ...

# How often a thread of the present team went to sleep.
def sleeps() -> int: ...

# A matrix [n, k], packed; made by ``pack``.
class Weight:
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    # Products round their inputs to 8 bits.
    @property
    def integer(self) -> bool: ...
    # Holds exactly the numbers it was made from.
    @property
    def exact(self) -> bool: ...
    @property
    def format(self) -> Literal["float32", "bfloat16", "int8", "affine4"]: ...
    @property
    def bytes(self) -> int: ...
    # ``out`` [ids, k]: rows of the matrix.
    def rows(self, ids: Indices, out: Floats) -> None: ...

def pack(matrix: Floats, format: PackFormat, integer: bool = False) -> Weight: ...  # noqa: A002

# ``out`` [rows, n] = ``x`` [rows, k] by the weight, plus ``bias`` [n], plus what ``out`` held if ``add``.
def linear(x: Floats, weight: Weight, out: Floats, bias: Floats | None = None, add: bool = False) -> None: ...

# ``logits`` [rows, n], ``statistics`` [rows, 4], ``target_logits`` [rows] of the columns ``targets``: each if given.
def lm_head(
    x: Floats,
    weight: Weight,
    logits: Floats | None = None,
    statistics: Floats | None = None,
    targets: Indices | None = None,
    target_logits: Floats | None = None,
) -> None: ...

# ``out`` [rows, n]: with ``residual``, that becomes ``residual + x`` first, and the norm is of it.
def rms_norm(x: Floats, weight: Floats, eps: float, out: Floats, residual: Floats | None = None) -> None: ...

# ``x`` [rows, 2 n], ``out`` [rows, n].
def silu_mul(x: Floats, out: Floats) -> None: ...

# Rotates q and k of ``qkv`` [tokens, (q_heads + 2 kv_heads) head_dim] in place, and writes k and v to ``slots``.
def rope_write_kv(
    qkv: Floats,
    positions: Indices,
    slots: Indices,
    table: Floats,
    neox: bool,
    k_cache: Cache,
    v_cache: Cache,
) -> None: ...

# Attention over pages, see ``reference_ops.paged_attention``; ``page_mass`` for requests with one query only.
def paged_attention(
    q: Floats,
    k_cache: Cache,
    v_cache: Cache,
    kv_indptr: Indices,
    kv_indices: Indices,
    kv_last_page_len: Indices,
    page_size: int,
    scale: float,
    out: Floats,
    q_indptr: Indices | None = None,
    window: int = -1,
    logit_cap: float = 0.0,
    lse: Floats | None = None,
    page_mass: Floats | None = None,
) -> None: ...

# Draws one token a row, see ``reference_sampling.draw``. ``tokens`` int32; ``readings`` [5, rows]; ``own`` [rows, 4].
def draw(
    logits: Floats,
    temperatures: Floats,
    top_ks: Any,
    top_ps: Floats,
    min_ps: Floats,
    uniforms: Any,
    tokens: Any,
    readings: Floats | None = None,
    own: Floats | None = None,
    controls: Floats | None = None,
    places: Indices | None = None,
    state: Floats | None = None,
    steered: Floats | None = None,
    before: Floats | None = None,
) -> None: ...

# ``results`` [3, rows]: ln T in [``lowest``, ``highest``] whose entropy is nearest to the target, entropy, varentropy.
def solve_temperature(
    logits: Floats, targets: Floats, starts: Floats, lowest: Floats, highest: Floats, results: Floats
) -> None: ...

# A decoder as one call, see ``reference_ops.Decoder``.
class Decoder:
    def __init__(
        self,
        embedding: Weight,
        final_norm: Floats,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        intermediate: int,
        eps: float,
        head_eps: float,
        scale: float,
        window: int,
        logit_cap: float,
        rope_table: Floats,
        neox: bool,
    ) -> None: ...
    def add_layer(
        self,
        qkv: Weight,
        o: Weight,
        gate_up: Weight,
        down: Weight,
        input_norm: Floats,
        post_norm: Floats,
        qkv_bias: Floats | None = None,
        o_bias: Floats | None = None,
        q_norm: Floats | None = None,
        k_norm: Floats | None = None,
    ) -> None: ...
    # One cache for each layer. The memory stays the caller's, who keeps it alive.
    def set_cache(self, k: list[Cache], v: list[Cache]) -> None: ...
    # ``hidden_states`` [tokens, hidden]: embeddings in unless ``ids`` are given; after the final norm out.
    # ``kept`` [layers or 1, requests, blocks]: blocks of ``block_tokens`` tokens of decoded requests that are read (not 0),
    # ``tail`` [requests]: the token from which on all is read (0: everything). ``mass`` [layers, requests, blocks]: the
    # attention that blocks received, meant over the heads, of requests that read everything; 0 of others.
    # ``choices``, one a request: what it reads of the blocks before its tail is chosen anew for each KV head of each layer,
    # and its row of ``kept`` says nothing.
    def forward(
        self,
        ids: Indices | None,
        positions: Indices,
        out_slots: Indices,
        kv_indptr: Indices,
        kv_slots: Indices,
        q_indptr: Indices,
        hidden_states: Floats,
        block_tokens: int = 0,
        kept: Mask | None = None,
        tail: Indices | None = None,
        mass: Floats | None = None,
        choices: list[Choice | None] | None = None,
    ) -> None: ...

# What stands for the blocks of one request's keys in every layer, see ``reference_ops.block_keys``: computed once for each
# block, in blocks of the ``block_tokens`` of its first use. One step at a time may use it.
class BlockKeys:
    def __init__(self, layers: int, kv_heads: int, head_dim: int, bounds: bool) -> None: ...
    # Forgets all, for keys that were computed anew; ``ValueError`` while a step uses it.
    def reset(self) -> None: ...
    # Blocks that are there in all layers.
    @property
    def ready(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

# One layer's choice for a query ``q`` [q_heads, head_dim], of a model that runs module by module. ``slots``: of the
# request's tokens, oldest first; ``kept`` uint8 [kv_heads, blocks]: 1 for what is read.
def choose_blocks(
    choice: Choice,
    layer: int,
    q: Floats,
    k_cache: Cache,
    slots: Indices,
    block_tokens: int,
    scale: float,
    logit_cap: float,
    kept: Mask,
) -> None: ...

# How close a step's ``hidden`` [rows, n] are to those of their requests' last tokens: ``scores`` [2, rows] gravity and
# energy, see ``src/gravity.h``. State, written: ``ring`` [places, window, n], ``centre`` [places, n], ``seen`` [places].
def gravity(
    hidden: Floats,
    mean: Floats,
    places: Indices,
    ring: Floats,
    centre: Floats,
    seen: Indices,
    top_k: int,
    decay: float,
    scores: Floats,
) -> None: ...
