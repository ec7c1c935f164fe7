"""The quality of pruned attention: needles where they should be, equal shares, measures and intervals worked out by hand."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmark"))

import attention_quality
from attention_quality_parts import bootstrap, documents, measures, report, variants
from attention_quality_parts.forced import MOST_STEPS, Stream
from attention_quality_parts.variants import Variant

from sgl_entropic.attention.settings import POLICIES

# ------------------------------------------------------------------------------------------------ means over contexts


def test_a_mean_has_an_interval_that_narrows() -> None:
    assert bootstrap.mean([2.0] * 5, seed=1) == (2.0, (2.0, 2.0))
    few, many = (
        bootstrap.mean(np.random.default_rng(0).normal(3, 1, count).tolist(), 1) for count in (20, 2000)
    )
    for value, (low, high) in (few, many):
        assert low < value < high
        assert low < 3 < high
    assert many[1][1] - many[1][0] < 0.2 * (few[1][1] - few[1][0])
    # Of a normal mean: 1.96 standard errors to either side.
    assert many[1][1] - many[1][0] == pytest.approx(2 * 1.96 / math.sqrt(2000), rel=0.1)


def test_two_sides_come_from_the_same_contexts() -> None:
    # Contexts differ a hundredfold; the two sides' difference and ratio do not.
    lower = [1.0, 100.0, 10.0, 3.0]
    assert bootstrap.difference([x + 2 for x in lower], lower, 1) == (2.0, (2.0, 2.0))
    assert bootstrap.ratio([x / 2 for x in lower], lower, 1) == (0.5, (0.5, 0.5))
    # Of means, not of quotients.
    assert bootstrap.ratio([1.0, 1.0], [1.0, 3.0], 1)[0] == 0.5


@pytest.mark.parametrize(
    ("upper", "lower"),
    [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0]), ([math.nan], [1.0]), ([1.0], [math.inf])],
)
def test_an_arm_that_is_empty_or_no_number_has_no_ratio(upper: list[float], lower: list[float]) -> None:
    with pytest.raises(bootstrap.EmptyError):
        bootstrap.ratio(upper, lower, 1)


# ----------------------------------------------------------------------------------------------------------- documents


class Letters:
    """A tokenizer of characters."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        assert not add_special_tokens
        return SimpleNamespace(ids=[ord(letter) for letter in text])

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


@given(st.floats(0, 1, exclude_max=True), st.integers(8, 100))
def test_depths_are_spread_over_their_range(offset: float, count: int) -> None:
    low, high = documents.SHALLOW, documents.DEEP
    both = [documents.depths_of(index, offset) for index in range(count)]
    assert all(low <= depth <= high for pair in both for depth in pair)
    for which in (0, 1):
        depths = [low, *sorted(pair[which] for pair in both), high]
        # Steps of the golden section leave gaps of at most 2.62 / count between neighbours round the circle.
        assert max(np.diff(depths)) <= 2.7 / count * (high - low)
    assert all(abs(a - b) >= 0.3 * (high - low) for a, b in both)


def test_sentences_lie_whole_at_their_depths() -> None:
    text = list(range(100, 190))
    got = documents.hidden_in(text, [[1] * 4, [2] * 6], [0.7, 0.2], 100)
    assert got[20:26] == [2] * 6
    assert got[70:74] == [1] * 4
    assert [token for token in got if token >= 100] == text
    for depths in ([0.2, 0.22], [0.2, 1.2]):
        with pytest.raises(documents.TextError, match="no room"):
            documents.hidden_in(text, [[1] * 4, [2] * 6], depths, 100)
    with pytest.raises(documents.TextError, match="99, not 100"):
        documents.hidden_in(text[1:], [[1] * 4, [2] * 6], [0.7, 0.2], 100)


def test_documents_are_pieces_of_the_text_with_codes_that_their_questions_ask_for() -> None:
    ids = list(range(10_000, 16_000))
    made = documents.cut(Letters(), ids, 800, 6, seed=3)  # type: ignore[arg-type]
    pieces = []
    for document in made:
        context, (first, second) = document.context.tolist(), document.questions
        assert len(context) == 800
        text = [token for token in context if token >= 10_000]
        pieces.append([*text, *document.following.tolist()])
        assert len(document.following) == documents.FOLLOWING_TOKENS + 1
        told = Letters().decode([token for token in context if token < 10_000])
        for question in (first, second):
            code = Letters().decode([question.ids[at] for at in question.digits])
            asked = Letters().decode(list(question.ids))
            assert asked.endswith(f" is {code}")
            subject = asked.partition("Answer: ")[2]
            assert f" {subject}." in told
        assert first.ids[first.digits[0] :] != second.ids[second.digits[0] :]
        at = round(document.depths[0] * 800)
        assert Letters().decode(context[at : at + 11]) == " The secret"
    # Pieces follow on in the text, and no two share a token.
    assert all(piece == list(range(piece[0], piece[0] + len(piece))) for piece in pieces)
    assert len({token for piece in pieces for token in piece}) == sum(map(len, pieces))


def test_documents_follow_from_the_seed() -> None:
    ids = list(range(10_000, 16_000))
    one, same, other = (documents.cut(Letters(), ids, 800, 2, seed) for seed in (1, 1, 2))  # type: ignore[arg-type]
    assert [d.questions for d in one] == [d.questions for d in same]
    assert all((a.context == b.context).all() for a, b in zip(one, same, strict=True))
    assert [d.questions for d in one] != [d.questions for d in other]
    with pytest.raises(documents.TextError, match="6000 tokens; 7 contexts of 800 need 6055"):
        documents.cut(Letters(), ids, 800, 7, 1)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ realised share


@pytest.mark.parametrize("policy", POLICIES)
def test_realised_share_of_one_step_by_hand(policy: Any) -> None:
    # 2,001 tokens: 121 blocks before a tail of 65; 59 blocks make at least half: ceil((0.5 * 2001 - 65) / 16).
    assert variants.realised_keep(policy, 0.5, 2000, 1) == (59 * 16 + 65) / 2001
    assert variants.realised_keep(policy, 1.0, 2000, 20) == 1.0


def test_a_policy_that_measures_reads_all_when_it_does() -> None:
    plain, measuring = (
        variants.realised_keep(policy, 0.25, 2000, MOST_STEPS) for policy in ("streaming", "attention")
    )
    # Chosen at the first step, measured anew at the 17th, 34th and 51st.
    assert measuring - plain == pytest.approx(3 / 64 * 0.75, abs=0.004)


@pytest.mark.parametrize("keep", attention_quality.KEEPS)
@pytest.mark.parametrize("context", [2000, 4000])
@pytest.mark.parametrize("steps", [29, 57, 64])
def test_budgets_make_realised_shares_equal(keep: float, context: int, steps: int) -> None:
    found = []
    for policy in POLICIES:
        ratio = variants.budget(Variant(policy, keep), context, steps)
        found.append(variants.realised_keep(policy, ratio, context, steps))
    assert max(found) <= keep
    assert min(found) >= (1 - variants.TOLERANCE) * keep


def test_a_variant_that_reads_another_share_is_an_error() -> None:
    variants.check(Variant("mixed", 0.5), 0.49)
    for realised in (0.51, 0.45):
        with pytest.raises(variants.KeepError, match=r"mixed 0\.5"):
            variants.check(Variant("mixed", 0.5), realised)
    # The sinks and the last tokens alone are more than a hundredth.
    with pytest.raises(variants.KeepError):
        variants.budget(Variant("mixed", 0.01), 2000, 64)


# ------------------------------------------------------------------------------------------------------------ measures


def test_divergence_surprisal_and_agreement_by_hand() -> None:
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.5, 0.2])
    sums = measures.TextSums(3)
    # An offset of all logits changes nothing.
    sums.add(torch.tensor(np.log([p, p, q]) + 5.0, dtype=torch.float32), target=2)
    sums.add(torch.tensor(np.log([q, q, q]), dtype=torch.float32), target=0)
    assert sums.means(0) == sums.means(1) == {"kl": 0.0, "dnll": 0.0, "top1": 1.0}
    got = sums.means(2)
    assert got["kl"] == pytest.approx(float((p * np.log(p / q)).sum()) / 2, abs=1e-6)
    assert got["dnll"] == pytest.approx(math.log(0.1 / 0.2) / 2, abs=1e-6)
    assert got["top1"] == 0.5


def a_document() -> documents.Document:
    first = documents.Question((5, 6, 7, 8), (2, 3))
    second = documents.Question((9, 10, 11), (1, 2))
    return documents.Document(np.arange(600), np.arange(65), (first, second), (0.2, 0.5))


def test_questions_are_one_stream_and_recall_counts_digits() -> None:
    asked = measures.Asked.of(a_document(), ["needle", "questions"])
    stream = asked.stream()
    # Each digit is computed by the token before it; nothing follows the last.
    assert stream.ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert stream.wanted == {1, 2, 4, 5}
    # Two rows, the dense one first; it misses the last digit itself.
    hits = {
        at: np.array(rows)
        for at, rows in ((2, (True, True)), (3, (True, False)), (5, (True, True)), (6, (False, True)))
    }
    assert asked.recall(hits, 1) == {
        "needle": 0.5, "needle_known": 0.5, "second": 1.0, "second_known": 0.5,
    }  # fmt: skip
    assert asked.recall(hits, 0)["second"] == asked.recall(hits, 0)["second_known"] == 0.5
    assert measures.Asked.of(a_document(), ["needle"]).ids == [5, 6, 7, 8]
    assert measures.Asked.of(a_document(), ["text"]).ids == []


def test_streams_end_before_their_own_tokens_could_be_left_out() -> None:
    Stream("text", np.arange(MOST_STEPS), frozenset())
    for count in (0, MOST_STEPS + 1):
        with pytest.raises(ValueError, match=f"{count} tokens"):
            Stream("text", np.arange(count), frozenset())


# ------------------------------------------------------------------------------------------------- tables and claims


def samples(kl: dict[Any, list[float]]) -> list[report.Sample]:
    """Contexts whose divergences are those of ``kl`` by policy at half, and dNLL a tenth of them."""
    made = []
    for at in range(len(kl["mixed"])):
        same = {"top1": 1.0, "needle": 0.8, "needle_known": 0.8, "keep_text": 0.49, "keep_asked": 0.49}
        figures = {
            f"{policy} 0.5": {"kl": kl[policy][at], "dnll": 0.1 * kl[policy][at], **same}
            for policy in POLICIES
        }
        dense = {**same, "kl": 0.0, "dnll": 0.0, "keep_text": 1.0, "keep_asked": 1.0}
        made.append(report.Sample(2000, (0.1, 0.4), {"dense": dense, **figures}))
    return made


def test_claims_and_table_are_paired_by_context() -> None:
    theirs = [1.0, 2.0, 9.0]
    made = samples({p: [x * (0.5 if p == "mixed" else 1.0) for x in theirs] for p in POLICIES})
    claims = {one.name: one for one in report.claims(made, 2000, 1)}
    assert set(claims) == {
        "prune_kl_vs_streamingllm_r50", "prune_kl_vs_quest_r50", "prune_dnll_r50_nats", "prune_needle_recall_r50",
        "prune_needle_codes_r50", "prune_dnll_vs_best_r50",
    }  # fmt: skip
    ratio = claims["prune_kl_vs_streamingllm_r50"]
    assert (ratio.value, ratio.low, ratio.high, ratio.ok) == (0.5, 0.5, 0.5, True)
    assert claims["prune_dnll_r50_nats"].value == pytest.approx(0.2)
    assert not claims["prune_needle_recall_r50"].ok
    # Ours lose 0.2 in the mean and the others 0.4, and four fifths of a code are no code.
    assert claims["prune_dnll_vs_best_r50"].value == pytest.approx(-0.2)
    assert claims["prune_dnll_vs_best_r50"].ok
    assert claims["prune_needle_codes_r50"].value == 0.0
    assert report.claims(made, 4000, 1) == report.long_claims(made, 4000, 1) == []
    long = [report.Sample(4000, one.depths, one.figures) for one in made]
    assert [one.name for one in report.long_claims(long, 4000, 1)] == [
        "prune_dnll_r50_nats_4k", "prune_needle_recall_r50_4k", "prune_needle_codes_r50_4k", "prune_dnll_vs_best_r50_4k",
    ]  # fmt: skip
    rows = report.rows(made, [0.5], 1)
    assert [row["policy"] for row in rows] == ["dense", *POLICIES]
    assert rows[1]["kl_ratio"] == [0.5, 0.5, 0.5]
    # Of the digits that the dense run knows, all.
    assert rows[1]["needle_known"] == [1.0, 1.0, 1.0]
    assert report.below_every_baseline(rows) == {"2000 tokens, keep 0.5": True}
    assert "4.0000 [1.0000, 9.0000]" in report.table(rows)
    assert report.in_lines(rows)[1]["kl_ratio"] == "0.5 0.5 0.5"
    assert report.compact(made)["2000"]["quest 0.5"]["kl"] == "1 2 9"


def test_the_best_of_the_others_is_the_one_that_loses_least() -> None:
    theirs = {policy: [3.0, 3.0] for policy in POLICIES}
    made = samples({**theirs, "mixed": [2.0, 2.0], "quest": [1.0, 2.0]})
    one = {claim.name: claim for claim in report.claims(made, 2000, 1)}["prune_dnll_vs_best_r50"]
    assert (one.value, one.low, one.high) == pytest.approx((0.05, 0.0, 0.1))
    assert not one.ok


def test_a_code_is_right_with_all_its_digits() -> None:
    assert report.whole([1.0, 0.8, 0.0, 1.0]) == [1.0, 0.0, 0.0, 1.0]


def test_claims_can_be_made_from_a_result_file() -> None:
    """From its samples alone; everything else of it stays as it is."""
    made = samples({policy: [1.0 + at, 2.5, 4.0] for at, policy in enumerate(POLICIES)})
    settings = {"context": 2000, "long_context": 4000, "seed": 1}
    content = {"claims": [], "commit": "c", "settings": settings, "samples": report.compact(made)}
    again = attention_quality.made_later(content)
    assert report.compact(report.stored(content)) == content["samples"]
    assert report.stored(content)[1].figures["quest 0.5"]["kl"] == made[1].figures["quest 0.5"]["kl"]
    assert [claim["name"] for claim in again["claims"]] == [c.name for c in report.claims(made, 2000, 1)]
    assert {name: again[name] for name in content if name != "claims"} == {
        name: value for name, value in content.items() if name != "claims"
    }
    assert attention_quality.made_later(again) == again


def test_an_arm_that_is_missing_or_failed_is_an_error() -> None:
    equal = {policy: [1.0, 2.0] for policy in POLICIES}
    made = samples(equal)
    del made[1].figures["quest 0.5"]
    with pytest.raises(KeyError, match="quest"):
        report.rows(made, [0.5], 1)
    with pytest.raises(bootstrap.EmptyError):
        report.rows(samples({**equal, "quest": [1.0, math.nan]}), [0.5], 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--contexts", "0", "--long-contexts", "0", "--name", ""], "at least one"),
        (["--contexts", "0"], "claims are of"),
        (["--keeps", "0.25", "--parts", "text"], "claims are of"),
        (["--keeps", "0.5", "1.5"], "--keeps"),
        (["--keeps", "0.5", "0.5"], "--keeps"),
        (["--context", "4000"], "two lengths"),
        (["--context", "100"], "512"),
    ],
)
def test_options_out_of_range_are_refused(words: list[str], said: str) -> None:
    options = attention_quality.parser().parse_args(["--text", "t", *words])
    with pytest.raises(SystemExit, match=said):
        attention_quality.checked(options)


def test_the_plot_shows_every_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", exc_type=ImportError)
    from attention_quality_parts import plot

    rows = report.rows(samples({policy: [1.0, 2.0] for policy in POLICIES}), [0.5], 1)
    plot.write(tmp_path / "quality.svg", rows, "title")
    text = (tmp_path / "quality.svg").read_text()
    assert text.count('<g id="axes_') == 3
