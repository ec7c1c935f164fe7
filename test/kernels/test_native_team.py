"""Threads change no bit, wait without work, and survive other threads, forks, and every instruction set."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kernel_checks as checks
import kernel_decoders as decoders
import numpy as np
import pytest

HERE = Path(__file__).parent
PRELUDE = """
import os, sys, time
import numpy as np
from sgl_entropic_kernels.native import library
native = library()
native.set_threads(3)
rng = np.random.default_rng(1)
weight = native.pack(rng.standard_normal((3000, 200)).astype(np.float32), "float32")
x = rng.standard_normal((20, 200)).astype(np.float32)
def compute():
    out = np.zeros((20, 3000), np.float32)
    native.linear(x, weight, out)
    return out
first = compute()
"""
FORK = """
child = os.fork()
if child == 0:
    os._exit(0 if (compute() == first).all() and native.regions() > 0 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (compute() == first).all()
"""
IDLE = """
before = time.process_time()
time.sleep(0.3)
assert time.process_time() - before < 0.05
assert native.sleeps() > 0
"""
MADE_AND_ENDED = """
for _ in range(300):
    native.set_threads(3)
    native.threads()
    native.set_threads(1)
    native.threads()
assert (compute() == first).all()
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture
def threads_as_before(native) -> Iterator[None]:
    before = native.threads()
    yield
    native.set_threads(before)


def results(native) -> list[Any]:
    """Something of every operation, large enough to be shared."""
    rng = checks.generator(3)
    found = []
    for kind, integer in (("float32", False), ("bfloat16", False), ("int8", True), ("affine4", True)):
        for n, k in ((40, 64), (130, 96), (700, 96), (3000, 32)):
            weight = native.pack(checks.matrix_of(kind, n, k, 1), "small" if integer else "lossless", integer)
            x = checks.normal(rng, 200, k)
            logits, statistics = np.zeros((200, n), np.float32), np.zeros((200, 4), np.float32)
            native.lm_head(x, weight, logits, statistics)
            found += [
                checks.product(native, x, weight),
                checks.product(native, x[:1], weight),
                logits,
                statistics,
            ]
    for queries in (None, [70, 1, 2]):
        case = checks.paged([3000, 1, 700], queries, (6, 2, 64), 16, 3, bf16=True)
        found += [part for part in case.run(native, checks.PLAIN, mass=queries is None) if part is not None]
    x, out = checks.normal(rng, 300, 256), np.zeros((300, 256), np.float32)
    native.rms_norm(x, x[0], 1e-6, out)
    found.append(out)
    narrow = np.zeros((300, 128), np.float32)
    native.silu_mul(x, narrow)
    found.append(narrow)
    pair = decoders.make(native, "qwen3", 1, bf16=True)
    slots = decoders.shuffled_slots([100, 60], 1)
    step = decoders.step_of(slots, [100, 60], [100, 60])
    found.append(pair.forward(step, rng.integers(0, decoders.VOCABULARY, 160)))
    return [*found, *pair.caches]


def test_the_number_of_threads_changes_no_bit(native, threads_as_before) -> None:
    native.set_threads(1)
    expected = results(native)
    for threads in (2, 3, 7):
        native.set_threads(threads)
        assert native.threads() == threads
        for one, other in zip(results(native), expected, strict=True):
            checks.check_same_bits(one, other)


def test_shared_work_is_counted(native, threads_as_before) -> None:
    native.set_threads(3)
    before = native.regions()
    weight = native.pack(checks.matrix_of("float32", 3000, 64, 1), "float32")
    checks.product(native, checks.normal(checks.generator(1), 8, 64), weight)
    assert native.regions() >= before + 2


def test_calls_from_two_threads_at_once_are_right(native, threads_as_before) -> None:
    native.set_threads(3)
    expected, failures = results(native), []

    def work() -> None:
        for one, other in zip(results(native), expected, strict=True):
            if one.tobytes() != other.tobytes():
                failures.append(one.shape)

    callers = [threading.Thread(target=work) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert failures == []
    assert not any(caller.is_alive() for caller in callers)


@pytest.mark.parametrize("program", [FORK, IDLE, MADE_AND_ENDED], ids=["fork", "idle", "made and ended"])
def test_in_a_process_of_its_own(program: str) -> None:
    """A forked child computes; helpers without work use no processor; a team may end before its helpers have begun."""
    result = python("-c", PRELUDE + program)
    assert result.returncode == 0, result.stderr


def has(isa: str) -> bool:
    """Whether this processor has what the instruction set needs, as the kernel lists it."""
    flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    avx2 = {"avx2", "fma", "f16c"}
    needed = {
        "generic": set(),
        "avx2": avx2,
        "avx512": avx2 | {f"avx512{x}" for x in ("f", "bw", "vl", "dq", "_vnni")},
    }
    return needed[isa] <= flags


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_every_instruction_set_computes_the_same_definitions(isa: str) -> None:
    """Or is refused by name, on a processor that lacks it."""
    result = python(str(HERE / "isa_process.py"), SGLANG_ENTROPIC_ISA=isa)
    if has(isa):
        assert (result.returncode, result.stdout) == (0, isa), result.stderr
    else:
        assert result.returncode == 1
        assert f"SGLANG_ENTROPIC_ISA={isa}: accepted: generic" in result.stderr


def test_an_unknown_instruction_set_is_an_exception_wherever_it_is_first_needed() -> None:
    result = python("-c", PRELUDE, SGLANG_ENTROPIC_ISA="bogus")
    assert result.returncode == 1, f"ended with {result.returncode}"
    assert "SGLANG_ENTROPIC_ISA=bogus: accepted: generic" in result.stderr
