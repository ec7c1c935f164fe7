"""From entropies to what each step reads: when all is read, when blocks are chosen anew, and that a step looks back only."""

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.attention.pruning import LAG_TOKENS, Pruning, Reading
from sgl_entropic.attention.settings import AttentionSettings

PROMPT = 1000
SETTINGS = AttentionSettings(
    min_keep_ratio=0.3, max_keep_ratio=0.3, score_interval_steps=8, spike_entropy_nats=6.0, calm_share=0.5
)


def flat(blocks: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.zeros((1, blocks), dtype=np.float32)


def run(
    entropies: list[float | None],
    settings: AttentionSettings = SETTINGS,
    prompt: int = PROMPT,
    contribution: Callable[[int], np.ndarray] = flat,  # type: ignore[type-arg]
) -> tuple[Pruning, list[Reading]]:
    """The decode steps of an answer with these entropies; the first token comes from the prefill."""
    pruning = Pruning(settings)

    def at(index: int) -> float | None:
        return entropies[index] if index < len(entropies) else None

    return pruning, [pruning.step(n, prompt + n, at, contribution) for n in range(1, len(entropies) + 1)]


def test_short_contexts_are_read_whole() -> None:
    _, steps = run([1.0] * 30, prompt=SETTINGS.min_context_tokens - 20)
    reasons = [step.reason for step in steps]
    assert reasons == ["short"] * 19 + ["kept"] * 11


def test_nothing_is_pruned_before_an_entropy_is_known() -> None:
    _, steps = run([1.0] * 5)
    assert [step.reason for step in steps] == ["unknown"] * (LAG_TOKENS - 1) + ["kept"] * (6 - LAG_TOKENS)
    _, steps = run([1.0, None, 1.0, 1.0, 1.0])
    assert [step.reason for step in steps] == ["unknown", "kept", "unknown", "kept", "kept"]


def test_blocks_are_chosen_anew_at_the_interval() -> None:
    pruning, steps = run([1.0] * 30)
    rescored = [n for n, step in enumerate(steps, 1) if step.rescored]
    assert rescored == [2, 10, 18, 26]
    assert all(
        step.selection is not None and 0 < step.selection.kept.sum() < step.selection.kept.size
        for step in steps[1:]
    )
    assert pruning.spikes == 0


def test_a_spike_brings_all_back_at_once_and_until_it_is_calm() -> None:
    """Beyond 6 nats all is read, and until the entropy falls below 3; then the blocks are chosen anew."""
    entropies: list[float | None] = [1.0, 1.0, 6.5, 4.0, 3.5, 2.9, 1.0, 1.0]
    pruning, steps = run(entropies)
    by_index = dict(enumerate(steps, 1))
    # The entropy of token 2 is what the step of token 4 knows last.
    assert [by_index[n].reason for n in (2, 3, 4, 5, 6, 7, 8)] == [
        "kept",
        "kept",
        "spike",
        "spike",
        "spike",
        "kept",
        "kept",
    ]
    assert by_index[7].rescored
    assert pruning.spikes == 1


def test_entropy_decides_the_share() -> None:
    """The mean of the last interval, by the formula: contexts contract as entropy falls."""
    settings = AttentionSettings(min_keep_ratio=0.2, reference_entropy_nats=10.0, spike_entropy_nats=20.0)
    read = []
    for entropy in (0.5, 2.0, 5.0, 9.0):
        _, steps = run([entropy] * 4, settings)
        assert steps[-1].selection is not None
        read.append(steps[-1].selection.tokens(PROMPT + 4, settings.block_tokens) / (PROMPT + 4))
    assert read == sorted(read)
    for share, entropy in zip(read, (0.5, 2.0, 5.0, 9.0), strict=True):
        assert abs(share - (0.2 + 0.8 * entropy / 10)) < 0.02
    _, steps = run([10.0] * 4, settings)
    assert steps[-1].selection is None
    assert steps[-1].reason == "ratio"


def test_the_end_of_the_answer_is_reckoned_with() -> None:
    """Of a long interval only so much growth counts as the answer has steps left."""
    settings = AttentionSettings(
        min_keep_ratio=0.1, reference_entropy_nats=10.0, score_interval_steps=1000, spike_entropy_nats=20.0
    )

    def read(left: int | None) -> float:
        step = Pruning(settings).step(5, 1000, lambda _: 5.0, flat, left)
        assert step.selection is not None
        return step.selection.tokens(1000, settings.block_tokens)

    # A share of 0.55 of 1,000 tokens, in blocks of 16.
    assert 534 < read(1) <= 550
    assert 534 < read(11) + 5 <= 553
    assert 100 <= read(None) < read(400) < read(11)


def test_attention_is_measured_a_step_before_it_is_needed() -> None:
    settings = AttentionSettings(
        policy="attention", min_keep_ratio=0.3, max_keep_ratio=0.3, score_interval_steps=8
    )
    _, steps = run([1.0] * 24, settings)
    reasons = [step.reason for step in steps]
    assert reasons[:3] == ["unknown", "measure", "kept"]
    assert [n for n, reason in enumerate(reasons) if reason == "measure"] == [1, 10, 19]


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 10)), min_size=1, max_size=60),
    st.integers(1, 60),
    st.floats(0, 10),
    st.sampled_from(["surprisal", "attention"]),
)
def test_a_step_looks_back_only(entropies: list[float | None], cut: int, other: float, policy: str) -> None:
    """What comes later than the lag changes nothing: decisions are the same with and without overlapped scheduling."""
    settings = AttentionSettings(policy=policy, score_interval_steps=5, min_keep_ratio=0.2)  # type: ignore[arg-type]
    cut = min(cut, len(entropies))
    changed = entropies[: max(0, cut - LAG_TOKENS + 1)] + [other] * (
        len(entropies) - max(0, cut - LAG_TOKENS + 1)
    )
    _, one = run(entropies, settings)
    _, two = run(changed, settings)
    for a, b in zip(one[:cut], two[:cut], strict=True):
        assert a.reason == b.reason
        assert (a.selection is None) == (b.selection is None)
        if a.selection is not None and b.selection is not None:
            assert (a.selection.kept == b.selection.kept).all()


@given(st.lists(st.one_of(st.none(), st.floats(0, 10)), min_size=1, max_size=80))
def test_every_spike_is_answered_in_the_step_that_learns_of_it(entropies: list[float | None]) -> None:
    _, steps = run(entropies)
    for n, step in enumerate(steps, 1):
        known = n - LAG_TOKENS
        entropy = entropies[known] if known >= 0 else None
        if entropy is None or entropy > SETTINGS.spike_entropy_nats:
            assert step.selection is None
