"""How the tree core gets into SGLang, and that it does not where nobody asked."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from eviction_rig import Rig
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from sgl_entropic.config import EntropicConfig
from sgl_entropic.config.model import EvictionConfig
from sgl_entropic.errors import UnsupportedError
from sgl_entropic.runtime.eviction import settings
from sgl_entropic.runtime.eviction.tree_core import EntropicTreeCore

ON = EntropicConfig(eviction=EvictionConfig(enabled=True))
IMPORTED = """
import os
os.environ["SGLANG_ENTROPIC_CONFIG"] = "{}"
from sglang.srt.plugins import load_plugins
load_plugins()
import sgl_entropic.runtime.scheduler
from sglang.srt.mem_cache.unified_cache.tree_core_registry import registered_tree_core_backends
print(registered_tree_core_backends(), os.environ.get("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"))
from sgl_entropic.config.model import EvictionConfig
from sgl_entropic.runtime.eviction import settings
from sglang.srt.mem_cache.unified_cache.tree_core_registry import get_tree_core_factory
settings._book = lambda params, config, counters: config.ghost_ratio
settings.EntropicTreeCore = lambda params, components, book: book
for ghost_ratio in (2.0, 3.0):
    settings.install(EvictionConfig(enabled=True, ghost_ratio=ghost_ratio), None)
    print(get_tree_core_factory("entropic")(None, {}))
print(registered_tree_core_backends(), os.environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"])
"""


def scheduler(tree_cache: object, config: EntropicConfig = ON) -> SimpleNamespace:
    return SimpleNamespace(
        entropic_config=config, is_generation=True, tree_cache=tree_cache, waiting_queue=[]
    )


def test_registered_and_selected_only_where_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    # A second server in one process has settings of its own.
    assert done.stdout.splitlines()[-4:] == [
        "['python', 'rust'] None",
        "2.0",
        "3.0",
        "['python', 'rust', 'entropic'] entropic",
    ]


def test_off_there_is_no_evictor() -> None:
    assert settings.evictor_of(scheduler(Rig().cache, EntropicConfig())) is None


def test_the_evictor_is_that_of_the_schedulers_tree() -> None:
    rig = Rig()
    here = settings.evictor_of(scheduler(rig.cache))
    assert here is not None
    assert here.core is rig.core


@pytest.mark.parametrize("backend", ["python", "rust"])
def test_a_tree_that_is_not_ours_is_refused(backend: str) -> None:
    with pytest.raises(UnsupportedError, match="--entropic-eviction"):
        settings.evictor_of(scheduler(Rig(backend=backend).cache))


def test_a_cache_without_a_tree_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="SimpleNamespace"):
        settings.evictor_of(scheduler(SimpleNamespace(disable=False)))


def test_a_model_with_other_state_in_its_cache_is_refused() -> None:
    kinds = {ComponentType.FULL: None, ComponentType.SWA: None, ComponentType.MAMBA: None}
    with pytest.raises(UnsupportedError, match="mamba, swa state"):
        EntropicTreeCore(SimpleNamespace(), kinds, Rig().book)


def test_ranks_of_a_group_share_a_clock_that_counts_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SimpleNamespace(token_to_kv_pool_allocator=SimpleNamespace(size=1000), page_size=1)
    monkeypatch.setattr(settings, "get_parallel", lambda: SimpleNamespace(tp_size=2))
    book = settings._book(params, EvictionConfig(enabled=True, ghost_ratio=2.5), None)  # type: ignore[arg-type]
    monkeypatch.setattr(settings, "seat", lambda: SimpleNamespace(token_clock=4000))
    assert book.clock() == 4.0
    assert book.gravity() == 0.0
    assert book.ghosts.most_tokens == 2500
    monkeypatch.setattr(settings, "get_parallel", lambda: SimpleNamespace(tp_size=1))
    alone = settings._book(params, EvictionConfig(enabled=True), None)  # type: ignore[arg-type]
    assert alone.clock is time.monotonic
