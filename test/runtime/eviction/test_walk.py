"""Who goes first, in the real tree: against an order found by ranking one node at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from eviction_rig import Rig
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_entropic.eviction import EvictionSettings, Leaves

WEIGHED = EvictionSettings(surprisal_weight=0.5)


def naive_victims(rig: Rig, tokens: int) -> list[int]:
    """Take the leaf of least rank, again and again; ids of what goes."""
    table, gone, freed = rig.book.table, [], 0
    nodes = {node.id: node for _, node in rig.nodes()}
    while freed < tokens:
        leaves = [
            node for node in nodes.values() if not any(child.id in nodes for child in node.children.values())
        ]
        if not leaves:
            break
        ranks = []
        for node in leaves:
            row = table.facts(node).row
            one = Leaves(
                table.group[[row]],
                rig.clock.now_s - table.last_s[[row]],
                table.context_tokens[[row]],
                np.full(1, np.nan),
                np.zeros(1, dtype=np.bool_),
            )
            ranks.append((float(rig.book.policy.rank(one)[0]), row))
        least = leaves[ranks.index(min(ranks))]
        gone.append(least.id)
        freed += len(least.key)
        del nodes[least.id]
    return gone


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 400), st.sampled_from([0.0, 1.0]))
def test_victims_are_those_of_least_rank(seed: int, tokens: int, work: float) -> None:
    rng = np.random.default_rng(seed)
    rig = Rig(pool_tokens=4096, settings=EvictionSettings(work_weight=work, work_per_context=0.01))
    paths: list[tuple[int, ...]] = [()]
    for _ in range(60):
        ahead = paths[int(rng.integers(len(paths)))]
        ahead = ahead[: int(rng.integers(len(ahead) + 1))]
        paths.append((*ahead, *rng.integers(0, 50, int(rng.integers(1, 20))).tolist()))
        rig.serve(paths[-1])
        rig.clock.now_s += float(rng.exponential(30))
    expected = naive_victims(rig, tokens)
    before = {node.id for _, node in rig.nodes()}
    rig.evict(tokens)
    assert before - {node.id for _, node in rig.nodes()} == set(expected)


def test_before_anything_is_learnt_the_order_is_recency() -> None:
    rig = Rig()
    for start in (100, 200, 300):
        rig.serve(range(start, start + 50))
        rig.clock.now_s += 1.0
    rig.serve(range(100, 150))
    for gone in (200, 300, 100):
        assert rig.matched(range(gone, gone + 50))[0] == 50
        assert rig.evict(1) == 50
        assert rig.matched(range(gone, gone + 50))[0] == 0


def test_a_kind_of_prefix_that_returns_stays_longer_than_one_that_does_not() -> None:
    """Long prompts that never return, short ones that come back after a minute with a little more."""
    rig = Rig(pool_tokens=400_000)
    histories = {}
    for number in range(150):
        rig.serve([10_000 + number, *range(2000)])
        histories[number] = [20_000 + number, *range(100)]
        rig.serve(histories[number])
        if number >= 6:
            # One turn more of a conversation that is a minute old.
            histories[number - 6] += range(3000 + number, 3050 + number)
            rig.serve(histories[number - 6])
        rig.clock.now_s += 10.0
    # The younger is of the kind that never returned.
    rig.serve([9998, *range(100)])
    rig.clock.now_s += 5.0
    rig.serve([9999, *range(2000)])
    rig.clock.now_s += 5.0
    ranks, table = rig.book.ranks(0.0), rig.book.table
    rank = {path[0]: ranks[table.facts(node).row] for path, node in rig.nodes() if not node.children}
    assert rank[9998] > rank[9999]
    asked = 2001 * 149
    assert rig.evict(asked) >= asked
    assert rig.matched([9998, *range(100)])[0] == 101
    assert rig.counters.evict_calls == 1


def test_the_predictable_goes_first_where_most_requests_are_in_strong_gravity() -> None:
    gravity = [0.0]
    readings = torch.full((513,), float("nan"))
    rig = Rig(settings=WEIGHED, gravity=lambda: gravity[0], readings=lambda: readings)
    for start in (100, 200, 300):
        rig.serve(range(start, start + 20))
        rig.clock.now_s += 1.0
    for start, nats in ((100, 5.0), (200, 0.5), (300, 2.0)):
        slots = rig.cache.path_device_indices(rig.matched(range(start, start + 20))[1])
        # Half of a node's tokens were never scored.
        readings[slots[::2].long()] = nats
    assert rig.book.table.surprisal_read.sum() == 0
    gravity[0] = 1.0
    assert rig.evict(1) == 20
    assert rig.matched(range(200, 220))[0] == 0
    means = {
        len(path): rig.book.table.surprisal_nats[rig.book.table.facts(node).row] for path, node in rig.nodes()
    }
    assert means[20] in (5.0, 2.0)
    # By recency it would have been the first.
    assert rig.counters.evicted_predictable_tokens == 20
    gravity[0] = 0.0
    assert rig.evict(1) == 20
    assert rig.matched(range(100, 120))[0] == 0
    assert rig.counters.evicted_predictable_tokens == 20


def test_parts_of_a_node_have_surprisals_of_their_own() -> None:
    readings = torch.arange(513, dtype=torch.float32)
    rig = Rig(settings=WEIGHED, gravity=lambda: 1.0, readings=lambda: readings)
    rig.serve(range(100, 120))
    rig.book.ranks(1.0)
    rig.serve([*range(100, 105), 7, 8])
    rig.book.ranks(1.0)
    table = rig.book.table
    for _, node in rig.nodes():
        slots = node.component_data[0].value.double()
        assert table.surprisal_nats[table.facts(node).row] == pytest.approx(slots.mean().item())


def test_the_same_calls_evict_the_same_whatever_the_node_ids_and_addresses() -> None:
    """As ranks of one group have to, which share the clock and the requests."""
    rng = np.random.default_rng(5)
    rigs = [Rig(pool_tokens=600), Rig(pool_tokens=600)]
    for _ in range(200):
        tokens = rng.integers(0, 4, int(rng.integers(1, 60))).tolist()
        wait = float(rng.exponential(20))
        for rig in rigs:
            rig.serve(tokens)
            rig.clock.now_s += wait
        first, second = ({path for path, _ in rig.nodes()} for rig in rigs)
        assert first == second
    assert rigs[0].counters.evicted_tokens > 0
    assert rigs[0].counters == rigs[1].counters


def test_more_nodes_than_the_table_had_rows_for() -> None:
    rig = Rig(pool_tokens=3000)
    for number in range(2500):
        rig.serve([number])
    assert len(rig.book.table.leaf_rows()) == 2500
    assert rig.evict(1000) == 1000
    assert rig.matched([0])[0] == 0
    assert rig.matched([2499])[0] == 1
