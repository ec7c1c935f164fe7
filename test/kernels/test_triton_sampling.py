"""The Triton kernel holds entropies as the float64 definitions say; without a GPU in Triton's interpreter, and compiled.

Triton decides when it is imported whether it interprets, so the kernel runs in a process of its own: once, for all rows
that the tests below look at.
"""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from kernel_checks import check_same_bits
from numpy.typing import NDArray
from sampling_checks import rows_of, solve

from sgl_entropic_kernels.reference import RowReference, one_row
from sgl_entropic_kernels.reference_sampling import entropy_at

Array = NDArray[Any]
INF, NAN = math.inf, math.nan
FIXED, NEWTON, EXACT = range(3)
TOLERANCE_NATS = 1e-3  # of the search
ROUNDING_NATS = 2e-5  # float32 sums
FLOOR = 0.1  # least varentropy that Newton's step divides by

KERNEL_PROCESS = """
import pickle, sys, torch
from sgl_entropic_kernels import triton_sampling
device, largest_block = sys.argv[3], triton_sampling._LARGEST_BLOCK
results = {}
for name, case in pickle.load(open(sys.argv[1], "rb")).items():
    triton_sampling._LARGEST_BLOCK = case["block"] or largest_block
    values = torch.from_numpy(case["logits"]).to(getattr(torch, case["dtype"])).to(device)
    apart = torch.full((len(values), values.shape[1] + 5), 99.0, dtype=values.dtype, device=device)
    apart[:, : values.shape[1]] = values
    logits = apart[:, : values.shape[1]] if case["apart"] else values
    columns = [torch.from_numpy(column).to(device) for column in case["columns"]]
    before = [tensor.clone() for tensor in (apart, values, *columns)]
    result = triton_sampling.step(logits, *columns, *case["steps"])
    for one, other in zip((apart, values, *columns), before, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), "an input was written to"
    results[name] = {field: getattr(result, field).cpu().numpy() for field in result._fields}
pickle.dump(results, open(sys.argv[2], "wb"))
"""

COMPILE_PROCESS = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sgl_entropic_kernels import triton_sampling
kernel = triton_sampling._step_kernel
pointers = {"log_temperatures": "*fp32", "targets": "*fp32", "gains": "*fp32", "modes": "*i32", "lowest": "*fp32"}
pointers |= {"highest": "*fp32", "controls": "*i1", "numbers": "*fp32", "saturations": "*i1"}
for arch, logits in ((80, "fp32"), (90, "bf16"), (90, "fp16")):
    types = {name: pointers.get(name, "i32") for name in kernel.arg_names} | {"logits": "*" + logits, "BLOCK": "constexpr"}
    source = ASTSource(kernel, types, {"BLOCK": triton_sampling._LARGEST_BLOCK})
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 16})
    print(arch, logits, len(compiled.asm["cubin"]))
"""


def run(program: str, *arguments: object, interpret: bool = False, cache_dir: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(cache_dir)}
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---------------------------------------------------------------------------------------------- what is run


@dataclass(frozen=True)
class Row:
    """One row and what it asks for."""

    logits: Array
    target: float
    mode: int = EXACT
    u: float = 0.123456789
    gain: float = 0.1
    bounds: tuple[float, float] = (-1.5, 1.5)
    controlled: bool = True

    def truth(self, log_temperature: float) -> RowReference:
        return one_row(self.logits, math.exp(log_temperature))

    def ends(self) -> tuple[float, float]:
        """Entropies at the bounds, as float32 has them."""
        low, high = (entropy_at(self.logits, float(np.float32(bound))) for bound in self.bounds)
        return low, high

    def towards(self, share: float) -> Row:
        """With a target at a share of what the bounds can reach."""
        low, high = self.ends()
        return replace(self, target=float(np.float32(low + share * (high - low))))


class Batch(NamedTuple):
    rows: list[Row]
    block: int = 0
    dtype: str = "float32"
    apart: bool = False
    steps: tuple[int, ...] = ()


class Answer(NamedTuple):
    used_log_temperature: np.float32
    entropy_nats: np.float32
    varentropy: np.float32
    next_log_temperature: np.float32
    saturated: np.bool_


VOCAB_SIZE = 777
SHAPES = ("model", "ties", "masked", "ladder", "two levels", "far tail", "huge range")


@cache
def shape(name: str, vocab_size: int = VOCAB_SIZE) -> Array:
    """Logits [V] float32 of which temperatures in the bounds change the entropy."""
    rank = np.arange(vocab_size)
    if name in ("model", "ties", "masked"):
        return rows_of(name, 1, vocab_size, 5)[0]
    if name == "ladder":
        values = -3.0 * np.floor(np.log10(rank + 1.0) * 3.0) - 300.0
    elif name == "two levels":
        return levels(6.0, vocab_size)
    elif name == "far tail":  # below a float32's reach, from another block than the largest
        values = np.where(rank < 4, 300.0 - 0.5 * rank, 0.0)
    else:
        values = np.where(
            rank < 4, -0.5 * rank, -(10.0 ** np.random.default_rng(1).uniform(0, 37, vocab_size))
        )
    return values.astype(np.float32)


def levels(above: float, vocab_size: int = VOCAB_SIZE) -> Array:
    """One token above all others; entropy is flat on both sides of a steep rise, where Newton's step leaves the range."""
    return np.where(np.arange(vocab_size) == 3, above, 0.0).astype(np.float32)


def one_legal() -> Array:
    row = np.full(VOCAB_SIZE, -INF, np.float32)
    row[7] = 1.0
    return row


def special(*values: float) -> Array:
    row = np.full(VOCAB_SIZE, -INF, np.float32)
    row[: len(values)] = values
    return row


WITHIN = [Row(shape(name), 0.0).towards(share) for name in SHAPES for share in (0.02, 0.5, 0.97)]
WIDE = [
    Row(logits, 0.0, bounds=(-4.6, 4.6)).towards(share)
    for logits in (*(shape(name) for name in SHAPES), levels(2.0), levels(13.0))
    for share in (0.001, 0.3, 0.7, 0.999)
]
LONG = [Row(shape(name, 3000), 0.0, bounds=(-2.0, 1.0)).towards(0.4) for name in ("model", "masked")]
BEYOND = [Row(shape(name), 0.0).towards(share) for name in SHAPES for share in (-0.1, 1.1)]
UNSTEERABLE = [
    Row(one_legal(), 0.5),
    Row(np.zeros(VOCAB_SIZE, np.float32), 2.0),
    Row(rows_of("huge", 1, VOCAB_SIZE, 2)[0], 1.0),
    Row(shape("model"), 1.0, bounds=(0.3, 0.3)),
    Row(shape("model"), NAN),
    Row(shape("model"), INF),
]
UNCONTROLLED = [
    Row(shape(name), 1.0, mode, u, controlled=False)
    for mode in range(3)
    for name, u in (("model", 0.3), ("masked", -0.0), ("ties", -INF))
]
INVALID = [
    Row(row, 1.0, mode)
    for mode in range(3)
    for row in (
        special(NAN, 0.0, 1.0),
        special(),
        special(INF, 0.0, NAN),
        np.full(VOCAB_SIZE, NAN, np.float32),
    )
]
LAW = [
    Row(shape(name), target, mode, u, gain)
    for name in SHAPES[:5]
    for mode, u, gain in ((FIXED, 0.2, 0.05), (NEWTON, -0.3, 0.5), (FIXED, 1.4, 2.0), (NEWTON, -1.2, 1.5))
    for target in (0.5, 5.0)
]
COLD = [Row(shape("model"), 2.0, mode, -6.0, 0.3, bounds=(-7.0, 1.5)) for mode in (FIXED, NEWTON)]
FROZEN = [
    Row(row, 2.0, mode, u)
    for mode in (FIXED, NEWTON)
    for row, u in (
        (one_legal(), 0.2),
        (np.zeros(VOCAB_SIZE, np.float32), 0.2),
        (special(20.0, 0.0, 1.0), 1.0),
        (shape("model"), -INF),
    )
]
SHARED = [Row(special(INF, 0.0, INF, -1.0), 0.1, mode) for mode in range(3)]
EXTREMES = [
    Row(special(3e38, -3e38, 3e38), 0.4, FIXED, 60.0),
    Row(special(1e30, 1e30, -1e30), 0.4, FIXED, -60.0),
]
ROUGH = [replace(row, logits=np.round(row.logits * 8) / 8) for row in (WITHIN[1], WITHIN[7], LAW[0], LAW[3])]

BATCHES = {
    "within": Batch(WITHIN),
    "within, in small blocks": Batch(WITHIN[1::3], block=256, apart=True),
    "wide": Batch(WIDE),
    "eight steps": Batch(WITHIN[:9], steps=(8,)),
    "long": Batch(LONG[:1], block=512),
    "long, masked": Batch(LONG[1:]),
    "beyond": Batch(BEYOND),
    "unsteerable": Batch(UNSTEERABLE),
    "uncontrolled": Batch(UNCONTROLLED),
    "invalid": Batch(INVALID, block=256),
    "law": Batch(LAW),
    "cold": Batch(COLD),
    "frozen": Batch(FROZEN),
    "shared": Batch(SHARED),
    "extremes": Batch(EXTREMES),
    "float16": Batch(ROUGH, dtype="float16"),
    "bfloat16": Batch(ROUGH, dtype="bfloat16", apart=True),
    "one step": Batch(WITHIN[:2], steps=(1,)),
    "alone": Batch(WITHIN[4:5]),
    "one token": Batch([Row(np.zeros(1, np.float32), 1.0)]),
}


def columns_of(rows: list[Row]) -> list[Array]:
    numbers = [[row.u, row.target, row.gain, row.mode, *row.bounds, row.controlled] for row in rows]
    types = (np.float32, np.float32, np.float32, np.int32, np.float32, np.float32, np.bool_)
    return [np.array(values, kind) for values, kind in zip(zip(*numbers, strict=True), types, strict=True)]


Answers = dict[str, list[Answer]]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Of every batch, from the interpreter; and from the GPU where there is one."""
    folder = tmp_path_factory.mktemp("triton")
    cases = {
        name: {
            "logits": np.stack([row.logits for row in batch.rows]).astype(np.float32),
            "columns": columns_of(batch.rows),
            **batch._asdict(),
        }
        for name, batch in BATCHES.items()
    }
    for case in cases.values():
        del case["rows"]
    (folder / "cases").write_bytes(pickle.dumps(cases))
    interpret = request.param == "cpu"
    paths = folder / "cases", folder / "results"
    run(KERNEL_PROCESS, *paths, request.param, interpret=interpret, cache_dir=folder / "cache")
    results = pickle.loads((folder / "results").read_bytes())
    return {
        name: [Answer(*values) for values in zip(*(result[f] for f in Answer._fields), strict=True)]
        for name, result in results.items()
    }


def assert_readings(row: Row, answer: Answer) -> None:
    """What is reported is what is there, at the temperature that is reported."""
    truth = row.truth(float(answer.used_log_temperature))
    size = 1.0 + truth.varentropy
    assert answer.entropy_nats == pytest.approx(truth.entropy_nats, abs=ROUNDING_NATS * size)
    assert answer.varentropy == pytest.approx(truth.varentropy, abs=10 * ROUNDING_NATS * size)


def assert_keeps(row: Row, answer: Answer) -> None:
    start = np.array([row.u], np.float32)
    check_same_bits(np.array([answer.used_log_temperature]), start)
    check_same_bits(np.array([answer.next_log_temperature]), start)
    assert not answer.saturated


# ------------------------------------------------------------------------------------------------- exact


@pytest.mark.parametrize("name", ["within", "within, in small blocks", "wide", "long", "long, masked"])
def test_exact_mode_holds_every_target_within_reach(answers: Answers, name: str) -> None:
    for row, answer in zip(BATCHES[name].rows, answers[name], strict=True):
        assert row.bounds[0] < answer.used_log_temperature < row.bounds[1]
        held = entropy_at(row.logits, float(answer.used_log_temperature))
        assert held == pytest.approx(row.target, abs=TOLERANCE_NATS)
        assert_readings(row, answer)
        assert not answer.saturated
        assert answer.next_log_temperature == answer.used_log_temperature


def test_exact_mode_takes_the_nearest_bound_of_a_target_out_of_reach(answers: Answers) -> None:
    for row, answer in zip(BEYOND, answers["beyond"], strict=True):
        bound = row.bounds[0] if row.target < row.ends()[0] else row.bounds[1]
        assert answer.used_log_temperature == answer.next_log_temperature == bound
        assert answer.saturated
        assert_readings(row, answer)


def test_a_row_that_no_temperature_steers_keeps_its_own(answers: Answers) -> None:
    for row, answer in zip(UNSTEERABLE, answers["unsteerable"], strict=True):
        assert_keeps(row, answer)
        assert_readings(row, answer)
    assert_keeps(BATCHES["one token"].rows[0], answers["one token"][0])


def test_the_search_tries_as_many_temperatures_as_it_is_told(answers: Answers) -> None:
    """One: the middle of the bounds."""
    assert [answer.used_log_temperature for answer in answers["one step"]] == [0.0, 0.0]


def test_newtons_steps_need_fewer_than_bisections(answers: Answers) -> None:
    """Eight bisections would leave up to 0.006 of ``ln T``, times a varentropy of 0.5 and more."""
    for row, answer in zip(WITHIN[:9], answers["eight steps"], strict=True):
        assert answer.entropy_nats == pytest.approx(row.target, abs=TOLERANCE_NATS)
        assert answer.varentropy > 0.5


def test_the_compiled_cpu_kernel_finds_the_same(answers: Answers, native: ModuleType) -> None:
    for row, answer in zip(WITHIN + BEYOND, answers["within"] + answers["beyond"], strict=True):
        u, entropy_nats, varentropy = solve(native, row.logits[None], np.array([row.target]), *row.bounds)[
            :, 0
        ]
        assert answer.entropy_nats == pytest.approx(entropy_nats, abs=TOLERANCE_NATS)
        # As far apart as entropies that equal are: along a slope that is the varentropy.
        assert abs(answer.used_log_temperature - u) * min(varentropy, answer.varentropy) <= 2 * TOLERANCE_NATS


def test_a_row_alone_is_the_row_in_a_batch_bit_for_bit(answers: Answers) -> None:
    check_same_bits(np.array(answers["alone"][0][:4]), np.array(answers["within"][4][:4]))


# ---------------------------------------------------------------------------------------------- the laws


def test_the_laws_move_the_temperature_against_the_error(answers: Answers) -> None:
    moved = []
    for row, answer in zip(LAW, answers["law"], strict=True):
        truth = row.truth(float(np.float32(row.u)))
        slope = max(truth.varentropy, FLOOR) if row.mode == NEWTON else 1.0
        law = row.u - row.gain * (truth.entropy_nats - row.target) / slope
        assert answer.next_log_temperature == pytest.approx(
            min(max(law, row.bounds[0]), row.bounds[1]), abs=2e-4
        )
        assert answer.used_log_temperature == np.float32(row.u)
        assert not answer.saturated
        assert_readings(row, answer)
        moved.append(answer.next_log_temperature > answer.used_log_temperature)
    assert 10 < sum(moved) < 30  # both directions


def test_a_cold_row_is_not_mistaken_for_a_forced_one(answers: Answers) -> None:
    """Its varentropy is nearly 0 at this temperature, and was not before it: there is a way back."""
    for row, answer in zip(COLD, answers["cold"], strict=True):
        assert answer.varentropy < 0.01
        slope = FLOOR if row.mode == NEWTON else 1.0
        law = row.u - row.gain * (float(answer.entropy_nats) - row.target) / slope
        assert answer.next_log_temperature == pytest.approx(min(law, row.bounds[1]), abs=1e-4)


def test_forced_and_greedy_rows_freeze_the_laws(answers: Answers) -> None:
    for row, answer in zip(FROZEN, answers["frozen"], strict=True):
        assert_keeps(row, answer)
        assert_readings(row, answer)


# ------------------------------------------------------------------------------------------ rows left alone


def test_rows_that_are_not_controlled_keep_their_temperature_and_are_read(answers: Answers) -> None:
    for row, answer in zip(UNCONTROLLED, answers["uncontrolled"], strict=True):
        assert_keeps(row, answer)
        assert_readings(row, answer)


def test_what_is_no_distribution_reads_zero_and_changes_nothing(answers: Answers) -> None:
    for row, answer in zip(INVALID, answers["invalid"], strict=True):
        assert not row.truth(0.0).valid
        assert_keeps(row, answer)
        assert answer.entropy_nats == answer.varentropy == 0.0


def test_infinite_and_extreme_logits_are_read_as_their_limits(answers: Answers) -> None:
    for row, answer in zip(SHARED, answers["shared"], strict=True):
        assert_keeps(row, answer)
        assert_readings(row, answer)
        assert answer.entropy_nats == pytest.approx(math.log(2))
    for row, answer in zip(EXTREMES, answers["extremes"], strict=True):
        assert_readings(row, answer)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_the_numbers_they_hold(answers: Answers, dtype: str) -> None:
    for row, answer in zip(ROUGH, answers[dtype], strict=True):
        held = torch.from_numpy(row.logits).to(getattr(torch, dtype)).to(torch.float32).numpy()
        assert_readings(replace(row, logits=held), answer)
        if row.mode == EXACT:
            assert answer.entropy_nats == pytest.approx(row.target, abs=TOLERANCE_NATS)


# ------------------------------------------------------------------------------------- around the kernel


def arguments(**other: Any) -> dict[str, Any]:
    names = (
        "log_temperature",
        "target_nats",
        "gain",
        "mode",
        "min_log_temperature",
        "max_log_temperature",
        "controlled",
    )
    columns = [torch.from_numpy(column) for column in columns_of(WITHIN[:2])]
    return {"logits": torch.zeros(2, 5)} | dict(zip(names, columns, strict=True)) | other


@pytest.mark.parametrize(
    ("other", "error", "said"),
    [
        (
            {"logits": torch.zeros(2, 5, dtype=torch.float64)},
            TypeError,
            "float32, float16 or bfloat16, not .*float64",
        ),
        ({"logits": torch.zeros(2, 0)}, ValueError, "at least one column"),
        ({"logits": torch.zeros(5)}, ValueError, r"\[B, V\]"),
        ({"logits": torch.zeros(5, 2).T}, TypeError, "side by side, not 2 apart"),
        ({"mode": torch.zeros(2, dtype=torch.int64)}, TypeError, "mode must be torch.int32"),
        ({"controlled": torch.ones(2)}, TypeError, "controlled must be torch.bool"),
        ({"gain": torch.ones(3)}, ValueError, r"gain must be \[B\] = \[2\], not \[3\]"),
        ({"target_nats": torch.ones(4)[::2]}, TypeError, "target_nats must be contiguous"),
        ({"log_temperature": torch.ones(2, device="meta")}, ValueError, "on cpu like logits, not on meta"),
        ({"steps": 0}, ValueError, "steps must be at least 1, not 0"),
    ],
)
def test_what_is_refused(other: dict[str, Any], error: type[Exception], said: str) -> None:
    from sgl_entropic_kernels import triton_sampling

    with pytest.raises(error, match=said):
        triton_sampling.step(**arguments(**other))


def test_an_empty_batch_is_legal() -> None:
    from sgl_entropic_kernels import triton_sampling

    result = triton_sampling.step(**{name: value[:0] for name, value in arguments().items()})
    assert [column.shape for column in result] == [(0,)] * 5


def test_the_kernel_compiles_for_gpus(tmp_path: Path) -> None:
    """To machine code of two generations, which needs none of them; the interpreter accepts what the compiler does not."""
    lines = run(COMPILE_PROCESS, cache_dir=tmp_path).split("\n")[:-1]
    assert [line.rsplit(" ", 1)[0] for line in lines] == ["80 fp32", "90 bf16", "90 fp16"]


def test_the_rest_of_the_package_does_not_need_triton(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['triton'] = None; import sgl_entropic_kernels as package, pkgutil, importlib\n"
        "names = {m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith('triton_')}\n"
        "for name in names: importlib.import_module('sgl_entropic_kernels.' + name)\n"
        "print(len(names))"
    )
    assert int(run(program, cache_dir=tmp_path)) >= 4
