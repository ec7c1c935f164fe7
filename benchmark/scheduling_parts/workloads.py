"""What is asked: mixes with a seed, and a trace in Mooncake's form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from twin_parts import mooncake

from scheduling_parts.machine import Machine
from scheduling_parts.requests import Floats, Ints, Requests, limits_of

BLOCK = 32


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths within limits: median and the standard deviation of the logarithm."""

    median: float
    spread: float
    least: int
    most: int

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """``count`` lengths."""
        drawn = np.exp(math.log(self.median) + self.spread * rng.standard_normal(count))
        lengths: Ints = np.clip(np.rint(drawn), self.least, self.most).astype(np.int64)
        return lengths


# As the twin benchmark asks (benchmark/scheduling_load/workloads.py).
PROMPTS, ANSWERS = Lengths(64, 1.0, 4, 512), Lengths(64, 1.0, 4, 384)
PREFIX_BLOCKS = 6
HOT_QUESTIONS, HOT_ANSWERS = Lengths(16, 0.5, 4, 64), Lengths(32, 0.7, 4, 128)
COLD_PROMPTS = Lengths(128, 0.5, 32, 512)
HEAVY_PROMPTS, HEAVY_ANSWERS = Lengths(96, 0.5, 16, 256), Lengths(192, 0.4, 64, 384)
LIGHT_PROMPTS, LIGHT_ANSWERS = Lengths(32, 0.5, 8, 128), Lengths(32, 0.5, 8, 64)
TIGHT_PROMPTS, TIGHT_ANSWERS = Lengths(64, 0.7, 16, 256), Lengths(96, 0.7, 16, 320)


def poisson(rng: np.random.Generator, count: int) -> Floats:
    """Arrivals in ms, one a second: a Poisson process, given how many there were."""
    return np.sort(rng.uniform(0.0, 1000.0 * count, count))


def mixed(seed: int, count: int, shared: float = 0.3, groups: int = 4) -> Requests:
    """Mixed lengths; a ``shared`` part of the requests begins with one of ``groups`` prefixes of 192 tokens."""
    rng = np.random.default_rng([seed, 1])
    group = np.where(rng.random(count) < shared, rng.integers(0, groups, count), -1)
    prompt = PROMPTS.draw(rng, count) + np.where(group >= 0, PREFIX_BLOCKS * BLOCK, 0)
    blocks = np.full(groups, PREFIX_BLOCKS)
    return grouped(poisson(rng, count), prompt, ANSWERS.draw(rng, count), group, blocks)


def bursty(seed: int, count: int, variation: float = 3.0) -> Requests:
    """``mixed`` with gaps from a gamma distribution of that coefficient of variation, as real traffic has them."""
    rng = np.random.default_rng([seed, 5])
    gaps = rng.gamma(variation**-2, 1000 * variation**2, count)
    return replace(mixed(seed, count), arrival_ms=np.cumsum(gaps))


def tight(seed: int, count: int) -> Requests:
    """Short prompts and longer answers, so that the KV pool fills after requests were admitted; no length is known."""
    rng = np.random.default_rng([seed, 4])
    prompt, output = TIGHT_PROMPTS.draw(rng, count), TIGHT_ANSWERS.draw(rng, count)
    none = np.full(count, -1)
    made = grouped(poisson(rng, count), prompt, output, none, np.zeros(0, np.int64))
    return made.with_lengths("hidden")


def flood(seed: int, count: int, cold: float = 0.1) -> Requests:
    """Many short questions on one hot prefix of 192 tokens, and a ``cold`` part that shares nothing."""
    rng = np.random.default_rng([seed, 2])
    is_cold = rng.random(count) < cold
    hot = HOT_QUESTIONS.draw(rng, count) + PREFIX_BLOCKS * BLOCK
    prompt = np.where(is_cold, COLD_PROMPTS.draw(rng, count), hot)
    output = HOT_ANSWERS.draw(rng, count)
    group = np.where(is_cold, -1, 0)
    return grouped(poisson(rng, count), prompt, output, group, np.array([PREFIX_BLOCKS]))


def clients(seed: int, count: int) -> Requests:
    """Client 0 has half of the requests queued at once; clients 1 to 3 ask for two short ones now and then."""
    rng = np.random.default_rng([seed, 3])
    heavy = count // 2
    light = np.arange(count - heavy)
    client = np.concatenate([np.zeros(heavy, np.int64), 1 + light // 2 % 3])
    arrival = np.concatenate([np.zeros(heavy), 1000.0 * count * (1 + light // 2) / (2 + (count - heavy) / 2)])
    prompt = np.concatenate([HEAVY_PROMPTS.draw(rng, heavy), LIGHT_PROMPTS.draw(rng, count - heavy)])
    output = np.concatenate([HEAVY_ANSWERS.draw(rng, heavy), LIGHT_ANSWERS.draw(rng, count - heavy)])
    made = grouped(arrival, prompt, output, np.full(count, -1), np.zeros(0, np.int64))
    return replace(made, client=client, clients=4)


def trace(path: Path, count: int, length: float, most: tuple[int, int], skip: int = 0) -> Requests:
    """``count`` lines of a trace in Mooncake's form, one a second; lengths times ``length`` and at most ``most``."""
    scale = mooncake.Scale(length, 1.0, *most)
    scaled = mooncake.scaled(mooncake.read(path, skip + count)[skip:], scale)
    ids = [one.hash_ids[: -(-one.input_tokens // scale.block_tokens)] for one in scaled]
    begin = np.concatenate([[0], np.cumsum([len(one) for one in ids])])
    columns = [[one.input_tokens for one in scaled], [one.output_tokens for one in scaled]]
    prompt, output = (np.array(column, np.int64) for column in columns)
    zeros = np.zeros(count, np.int64)
    return Requests(
        np.array([one.start_s * 1000 for one in scaled]),
        prompt,
        output,
        np.full(count, 2 * most[1]),
        zeros,
        zeros.astype(np.bool_),
        zeros,
        begin,
        np.array([i for one in ids for i in one], np.int64),
        scale.block_tokens,
    )


def many_traces(path: Path, count: int, length: float, most: tuple[int, int], seed: int) -> Requests:
    """``count`` requests, one a second, of as many copies of a whole trace as it takes, all at the same time.

    Each copy has texts of its own and begins at a moment of its own, going on at the beginning where the
    trace ends: what came close together still does, and the copies' bursts are not one. Lengths as in
    ``trace``.
    """
    with path.open(encoding="utf-8") as lines:
        one = trace(path, sum(1 for _ in lines), length, most)
    lines_each, copies = len(one), -(-count // len(one))
    span_ms = 1000.0 * lines_each
    shift_ms = np.random.default_rng([seed, 8]).uniform(0.0, span_ms, copies)
    row, copy = (
        np.tile(np.arange(lines_each), copies)[:count],
        np.repeat(np.arange(copies), lines_each)[:count],
    )
    arrival = (one.arrival_ms[row] + shift_ms[copy]) % span_ms
    order = np.argsort(arrival, kind="stable")
    row, copy = row[order], copy[order]
    blocks = np.diff(one.block_begin)[row]
    begin = np.concatenate([[0], np.cumsum(blocks)])
    place = np.arange(begin[-1]) + np.repeat(one.block_begin[row] - begin[:-1], blocks)
    ids = one.block_ids[place] + np.repeat(copy, blocks) * (1 + one.block_ids.max(initial=0))
    return Requests(
        arrival[order] * (1000.0 * count / span_ms),
        one.prompt[row],
        one.output[row],
        one.most_new[row],
        one.client[row],
        one.ignores_eos[row],
        one.route[row],
        begin,
        ids,
        one.block_tokens,
    )


def listed(rows: Sequence[tuple[float, int, int, int]]) -> Requests:
    """Requests by hand: (arrival s, prompt tokens, output tokens, group), group < 0 for none.

    Those of a group share the whole blocks of the shortest prompt of it. All generate exactly their output.
    """
    arrival = np.array([row[0] * 1000 for row in rows])
    prompt, output, group = (np.array([int(row[at]) for row in rows], np.int64) for at in (1, 2, 3))
    many = int(group.max(initial=-1)) + 1
    blocks = np.array(
        [max(0, int(prompt[group == g].min(initial=1 << 30)) - 1) // BLOCK for g in range(many)]
    )
    made = grouped(arrival, prompt, output, group, blocks)
    return made.with_lengths("known")


def grouped(arrival: Floats, prompt: Ints, output: Ints, group: Ints, blocks: Ints) -> Requests:
    """Requests of groups that share ``blocks`` of their group; every second one ignores the end of the text."""
    count = np.where(group >= 0, blocks[group] if len(blocks) else 0, 0)
    begin = np.concatenate([[0], np.cumsum(count)])
    owner = np.repeat(np.arange(len(prompt)), count)
    ids = group[owner] * 4_096 + (np.arange(begin[-1]) - begin[owner])
    # which ones, by a draw that follows from the lengths
    known = np.random.default_rng(int(prompt.sum() + output.sum())).random(len(prompt)) < 0.5
    most_new = np.where(known, output, limits_of(output))
    zeros = np.zeros(len(prompt), np.int64)
    return Requests(arrival, prompt, output, most_new, zeros, known, zeros, begin, ids, BLOCK)


def work_ms(requests: Requests, machine: Machine) -> Floats:
    """Server time of each request in a full batch."""
    costs, context = machine.costs, requests.prompt + requests.output / 2
    row_ms = costs.decode_fixed_ms / machine.most_running + costs.decode_row_ms
    prefill = requests.prompt * (costs.prefill_token_ms + costs.prefill_pair_ms * requests.prompt)
    return prefill + requests.output * (row_ms + costs.decode_context_ms * context)
