"""The numeric core once, in a process whose instruction set the environment has chosen; prints its name at the end."""

from __future__ import annotations

import sys

import choice_checks as choices
import kernel_checks as checks
import kernel_decoders as decoders
import sampling_checks as sampling

from sgl_entropic_kernels import reference_ops as oracle
from sgl_entropic_kernels.native import library
from sgl_entropic_kernels.reference_sampling import Cut

SHAPES = (
    (0, 16, 32),
    (1, 5, 7),
    (1, 130, 96),
    (2, 33, 64),
    (3, 48, 160),
    (4, 17, 33),
    (6, 64, 64),
    (13, 100, 640),
    (98, 40, 96),
)
CAPPED = oracle.Scoring(0.3, 20, 5.0)


def main() -> None:
    """Raises AssertionError at the first difference."""
    native = library()
    for seed, (rows, n, k) in enumerate(SHAPES):
        for kind in checks.KINDS:
            whole = k - k % 32 if k >= 32 else 32
            k_of = whole if kind == "affine4" else k
            checks.check_lossless(native, kind, rows, n, k_of, seed)
            checks.check_integer(native, kind, rows, n, k_of, seed)
            checks.check_lm_head(native, kind, rows, n, k_of, seed, integer=kind in ("int8", "affine4"))
        checks.check_rms_norm(native, rows, n, seed, residual=bool(seed % 2))
        checks.check_silu_mul(native, rows, n, 10.0**seed, seed)
        checks.check_int8_rounding(native, n, k, seed)
    for kind in checks.KINDS:
        checks.check_rows_do_not_matter(native, kind, 50, 96, 1, integer=False)
        checks.check_rows_do_not_matter(native, kind, 50, 96, 1, integer=True)
    for seed, heads in enumerate(((4, 4, 16), (6, 2, 64), (8, 2, 80), (7, 1, 128), (8, 1, 16))):
        bf16 = bool(seed % 2)
        case = checks.paged([0, 1, 63, 300, 64], None, heads, (1, 3, 16, 64, 7)[seed], seed, bf16=bf16)
        checks.check_attention(native, case, CAPPED if seed % 2 else checks.PLAIN)
        checks.check_requests_do_not_matter(native, case, checks.PLAIN)
        case = checks.paged([90, 130], [90, 40], heads, 16, seed, bf16=bf16)
        checks.check_attention(native, case, CAPPED if seed % 2 else checks.PLAIN, mass=False)
        checks.check_rope_write_kv(native, 9, heads, 16, seed, neox=not bf16, bf16=bf16)
    for seed, family in enumerate(decoders.FAMILIES):
        decoders.check_decoder(native, family, [5, 1, 20], seed, bf16=bool(seed % 2))
        decoders.check_batch_does_not_matter(
            native, family, [5, 1, 20], seed, bf16=bool(seed % 2), integer=bool(seed % 2)
        )
    for seed, (heads, block_tokens) in enumerate(
        (((1, 3, 64), 16), ((2, 7, 128), 16), ((3, 4, 80), 7), ((1, 1, 272), 48))
    ):
        for bounds in (False, True):
            bf16, cap = bool(seed % 2), 2.0 * (seed % 2)
            choices.check_rule(heads, 40, block_tokens, seed, bf16=bf16, bounds=bounds, cap=cap)
    cuts = [Cut(0.8), Cut(1.0, top_k=1), Cut(1.3, 40, 0.9, 0.02), Cut(0.5, top_p=0.99)]
    for seed, kind in enumerate(sampling.KINDS):
        sampling.check_draw(native, kind, cuts, 2500, seed)
        sampling.check_steer(native, kind, cuts, ["exact", "newton", "fixed", "off"], 2500, seed)
        sampling.check_solve(native, kind, 3, 2500, (-0.7, 0.7), seed)
        sampling.check_rows_do_not_matter(native, kind, cuts, 1100, seed)
    sys.stdout.write(native.isa())


if __name__ == "__main__":
    main()
