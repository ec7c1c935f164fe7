"""The belief against exact conditional means of known length distributions, and against its own futures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.scheduling import RemainingBelief, RequestFacts
from sgl_entropic.scheduling.survival import LONGEST
from sgl_entropic.scheduling.traffic import MOST_GROUPS, Columns


def request(
    generated: int = 0, most: int = 4096, *, route: str = "chat", prompt: int = 100, ignores_eos: bool = False
) -> RequestFacts:
    return RequestFacts("r", 0, prompt, most, generated, ignores_eos=ignores_eos, route=route)


def learnt(lengths: list[int], most: int = 4096, route: str = "chat") -> RemainingBelief:
    belief = RemainingBelief()
    for length in lengths:
        belief.observe_finished(request(route=route, most=most), min(length, most), hit_limit=length > most)
    return belief


@pytest.mark.parametrize("generated", [0, 10, 60, 150])
@pytest.mark.parametrize("most", [200, 4096])
def test_geometric_lengths_are_forgotten(generated: int, most: int) -> None:
    chance = 1.0 / 80.0
    belief = learnt(np.random.default_rng(0).geometric(chance, 3000).tolist())
    left = most - generated
    exact = (1.0 - (1.0 - chance) ** left) / chance
    assert belief.expected(request(generated, most)) == pytest.approx(exact, rel=0.2)


@pytest.mark.parametrize("length", [1, 7, 100, 1000])
def test_one_fixed_length_is_known_within_a_bucket(length: int) -> None:
    belief = learnt([length] * 200)
    for generated in range(0, length, max(1, length // 5)):
        left = length - generated
        assert belief.expected(request(generated)) == pytest.approx(left, abs=0.25 * length)
    assert belief.expected(request(0)) == pytest.approx(length, rel=0.1)


def test_two_lengths_are_told_apart_once_the_short_one_has_passed() -> None:
    belief = learnt([10, 400] * 500)
    assert belief.expected(request(0)) == pytest.approx(205.0, rel=0.1)
    assert belief.expected(request(50)) == pytest.approx(350.0, rel=0.1)


def test_answers_cut_at_the_limit_are_not_taken_for_ends() -> None:
    lengths = np.random.default_rng(1).geometric(1.0 / 200.0, 3000).tolist()
    belief = learnt(lengths, most=100)
    assert belief.expected(request(0, 100)) == pytest.approx(np.minimum(lengths, 100).mean(), rel=0.05)
    assert belief.expected(request(0, 4096)) == pytest.approx(200.0, rel=0.25)


def test_kinds_are_told_apart_and_an_unknown_kind_is_all_traffic() -> None:
    belief = RemainingBelief()
    for _ in range(300):
        belief.observe_finished(request(route="short"), 10, hit_limit=False)
        belief.observe_finished(request(route="long"), 300, hit_limit=False)
    assert belief.expected(request(route="short")) == pytest.approx(10.0, rel=0.2)
    assert belief.expected(request(route="long")) == pytest.approx(300.0, rel=0.2)
    assert belief.expected(request(route="new")) == pytest.approx(155.0, rel=0.15)
    # A few requests of a kind move it from all traffic towards its own.
    for _ in range(4):
        belief.observe_finished(request(route="rare"), 10, hit_limit=False)
    assert 10.0 < belief.expected(request(route="rare")) < 120.0


def test_it_follows_traffic_that_changes() -> None:
    belief = learnt([20] * 2000)
    for _ in range(2500):
        belief.observe_finished(request(), 500, hit_limit=False)
    assert belief.expected(request(0)) == pytest.approx(500.0, rel=0.1)


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=30),
    st.integers(0, 5000),
    st.integers(0, 5000),
    st.sampled_from(["known", "unknown"]),
)
def test_it_stays_within_bounds(
    finished: list[tuple[int, bool]], generated: int, most: int, kind: str
) -> None:
    belief = RemainingBelief()
    for length, cut in finished:
        belief.observe_finished(request(), length, hit_limit=cut)
    asked = request(generated, most, ignores_eos=kind == "known")
    expected, left = belief.expected(asked), asked.most_remaining_tokens
    assert min(1, left) <= expected <= left
    if asked.ignores_eos:
        assert expected == left
    futures = belief.scenarios(Columns.of([asked], belief.groups), 5)
    assert ((futures >= min(1, left)) & (futures <= left) & (futures == np.round(futures))).all()


def test_futures_have_the_expected_mean() -> None:
    belief = learnt(np.random.default_rng(2).geometric(1.0 / 80.0, 2000).tolist())
    asked = Columns.of([request(30, 300)], belief.groups)
    futures = belief.scenarios(asked, 2000)
    assert futures.mean() == pytest.approx(belief.expected_many(asked)[0], rel=0.01)
    assert belief.typical_scenarios(3, 2000).mean() == pytest.approx(80.0, rel=0.15)


def test_lengths_beyond_all_buckets_do_no_harm() -> None:
    belief = learnt([LONGEST * 3] * 10, most=LONGEST * 8)
    assert LONGEST < belief.expected(request(0, LONGEST * 8)) < LONGEST * 8


def test_invented_routes_take_no_more_memory() -> None:
    belief = RemainingBelief()
    for number in range(MOST_GROUPS + 50):
        belief.observe_finished(request(route=f"route {number}"), 10, hit_limit=False)
    assert len(belief.groups) == MOST_GROUPS + 1
    assert belief.expected(request(route=f"route {MOST_GROUPS + 49}")) == pytest.approx(10.0, rel=0.3)


def test_a_kind_that_another_estimate_has_named_first_is_all_traffic_until_known() -> None:
    belief = learnt([50] * 100)
    belief.groups.observed(request(route="named elsewhere"))
    assert belief.expected(request(route="named elsewhere")) == pytest.approx(50.0, rel=0.1)


def test_a_change_of_traffic_is_felt_within_tens_of_answers() -> None:
    """What was learnt on long answers does not hold the estimate up when answers have become short, of any kind."""
    belief = RemainingBelief()

    def facts(at: int) -> RequestFacts:
        return RequestFacts(key=str(at), arrival=at, prompt_tokens=(60, 700)[at % 2], max_new_tokens=512)

    for at in range(400):
        belief.observe_finished(facts(at), 180 + at % 20, hit_limit=False)
    before = [belief.expected(facts(at)) for at in range(2)]
    assert before == pytest.approx([190, 190], rel=0.1)
    for at in range(0, 80, 2):
        # Of one kind only; the other has not been heard of since.
        belief.observe_finished(facts(at), 18 + at % 5, hit_limit=False)
    after = [belief.expected(facts(at)) for at in range(2)]
    assert max(after) < 0.6 * min(before)


def test_while_traffic_stays_the_same_the_correction_is_near_none() -> None:
    belief = RemainingBelief()
    rng = np.random.default_rng(1)
    for at in range(800):
        length = int(rng.geometric(1 / 80))
        belief.observe_finished(
            RequestFacts(key=str(at), arrival=at, prompt_tokens=60, max_new_tokens=4096),
            length,
            hit_limit=False,
        )
    assert belief._pace == 1.0
