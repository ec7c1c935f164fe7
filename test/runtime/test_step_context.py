"""Host facts of a step, read from SGLang's requests and prefix cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgl_entropic.runtime.prefix_boundary import give_back_boundary
from sgl_entropic.runtime.request_state import state_of
from sgl_entropic.runtime.step_context import RowFacts, read_rows

ASKS_FOR_PROMPT = {"entropic": {"return_prompt_surprisal": True}}


class Tree:
    """A prefix cache whose nodes are the slots on the path to them."""

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size

    def supports_swa(self) -> bool:
        return False

    def supports_mamba(self) -> bool:
        return False

    def path_device_indices(self, node: list[int]) -> torch.Tensor:
        return torch.tensor(node, dtype=torch.long)


def request(
    prompt: list[int],
    *,
    matched: list[int] | None = None,
    chunk_end: int | None = None,
    output: list[int] | None = None,
    custom_params: Any = None,
) -> Any:
    """A request about to run: ``matched`` are the slots of its prefix hit, ``chunk_end`` the end of its chunk."""
    filled = [*prompt, *(output or [])]
    path = matched or []
    return SimpleNamespace(
        session=None,
        prefix_len=len(path),
        kv=SimpleNamespace(cache_protected_len=len(path)),
        last_node=path,
        origin_input_ids=prompt,
        full_untruncated_fill_ids=filled,
        extend_end=len(filled) if chunk_end is None else chunk_end,
        sampling_params=SimpleNamespace(custom_params=custom_params),
    )


def facts_of(req: Any, tree: Tree | None = None) -> RowFacts:
    """The facts of a batch of this one request."""
    context = read_rows(SimpleNamespace(reqs=[req]), tree or Tree())
    assert len(context.rows) == 1
    return context.rows[0]


@pytest.mark.parametrize("page_size", [1, 16])
@given(data=st.data())
def test_the_first_recomputed_token_inherits_its_slot(page_size: int, data: st.DataObject) -> None:
    """After giving back one page, its tokens run again and the first of them keeps its reading in the tree."""
    pages = data.draw(st.integers(1, 5))
    path = data.draw(st.permutations(range(100, 100 + pages * page_size)))
    tree, req = Tree(page_size), request(list(range(len(path) + 3)), matched=path)
    give_back_boundary(req, tree)
    facts = facts_of(req, tree)
    assert facts.fresh is True
    assert facts.recomputed_tokens == page_size
    assert facts.inherited_slot is not None
    assert int(facts.inherited_slot) == path[(pages - 1) * page_size]


def test_without_a_hit_nothing_is_inherited() -> None:
    req = request([1, 2, 3])
    give_back_boundary(req, Tree())
    facts = facts_of(req)
    assert (facts.fresh, facts.inherited_slot, facts.recomputed_tokens) == (True, None, 0)


def test_a_hit_that_was_not_shortened_inherits_nothing() -> None:
    """The surprisal right after it stays unknown."""
    facts = facts_of(request([1, 2, 3], matched=[7, 8]))
    assert (facts.fresh, facts.inherited_slot, facts.recomputed_tokens) == (True, None, 0)


def test_a_node_shorter_than_the_prefix_inherits_nothing() -> None:
    """A hit whose end lies in no node of the device."""
    req = request([1, 2, 3, 4], matched=[7, 8])
    give_back_boundary(req, Tree())
    req.last_node = [7]
    facts = facts_of(req)
    assert (facts.inherited_slot, facts.recomputed_tokens) == (None, 0)


def test_only_the_first_pass_after_a_match_is_fresh() -> None:
    """The second chunk carries its surprisal over from the first; a new match starts again."""
    req = request([1, 2, 3, 4], matched=[9], chunk_end=3)
    give_back_boundary(req, Tree())
    assert facts_of(req).fresh is True
    again = facts_of(req)
    assert (again.fresh, again.inherited_slot, again.recomputed_tokens) == (False, None, 0)
    give_back_boundary(req, Tree())
    assert facts_of(req).fresh is True


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=8), st.data())
def test_a_middle_chunk_knows_the_token_after_it(prompt: list[int], data: st.DataObject) -> None:
    end = data.draw(st.integers(1, len(prompt) - 1))
    assert facts_of(request(prompt, chunk_end=end)).next_token == prompt[end]


def test_after_the_last_chunk_the_next_token_is_sampled() -> None:
    assert facts_of(request([1, 2, 3])).next_token is None


def test_a_retracted_request_refills_its_output_too() -> None:
    """Its chunks may end inside the output, whose next token is known."""
    assert facts_of(request([1, 2], output=[5, 6], chunk_end=3)).next_token == 6
    assert facts_of(request([1, 2], output=[5, 6])).next_token is None


def test_prompt_readings_are_fetched_once_with_the_last_chunk() -> None:
    req = request([1, 2, 3], chunk_end=2, custom_params=ASKS_FOR_PROMPT)
    assert facts_of(req).prompt_tokens == 0
    req.extend_end = 3
    assert facts_of(req).prompt_tokens == 3
    assert facts_of(req).prompt_tokens == 0
    assert state_of(req).prompt_fetched is True


def test_prompt_readings_are_of_the_prompt_only() -> None:
    """Not of the output that a retracted request fills again."""
    assert facts_of(request([1, 2], output=[5], custom_params=ASKS_FOR_PROMPT)).prompt_tokens == 2


@pytest.mark.parametrize("custom_params", [None, {}, {"entropic": {"return_entropy": True}}])
def test_prompt_readings_are_for_those_who_asked(custom_params: Any) -> None:
    req = request([1, 2, 3], custom_params=custom_params)
    assert facts_of(req).prompt_tokens == 0
    assert state_of(req).prompt_fetched is False


def test_rows_are_aligned_with_the_batch() -> None:
    reqs = [request([1, 2], chunk_end=1), request([3, 4]), request([5, 6, 7], chunk_end=2)]
    context = read_rows(SimpleNamespace(reqs=reqs), Tree())
    assert [facts.next_token for facts in context.rows] == [2, None, 7]
    assert [facts.state for facts in context.rows] == [state_of(req) for req in reqs]
