"""Thread counts are put back, whatever happens in between."""

from __future__ import annotations

import pytest
import torch

from sgl_entropic.runtime.one_thread import one_thread


def test_one_thread_inside_and_as_before_after() -> None:
    """Also when the block fails."""
    inside = []

    def fail() -> None:
        with one_thread(torch.device("cpu")):
            inside.append(torch.get_num_threads())
            raise KeyError("on purpose")

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError):
            fail()
        assert (inside, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_an_accelerator_is_left_alone() -> None:
    """The host's threads have nothing to do with it."""
    before = torch.get_num_threads()
    with one_thread(torch.device("meta")):
        assert torch.get_num_threads() == before
