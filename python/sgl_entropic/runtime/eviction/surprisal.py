"""Mean surprisal of nodes, from the readings that lie beside the KV pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

if TYPE_CHECKING:
    from sgl_entropic.runtime.eviction.table import NodeTable


def read_surprisals(table: NodeTable, readings: torch.Tensor | None) -> None:
    """Fill in the nodes that were not looked at yet, all in one gather; on a GPU the queue waits for that one.

    Args:
        table: of the tree.
        readings: ``[slots]`` surprisal of the token in each KV slot; ``None`` leaves all unknown.
    """
    if readings is None:
        return
    rows, slots = [], []
    for row in np.flatnonzero(~table.surprisal_read[: len(table.nodes)]).tolist():
        node = table.nodes[row]
        if node is not None and node.parent is not None:
            rows.append(row)
            slots.append(node.component_data[ComponentType.FULL].value)
    if not rows:
        return
    values: Any = readings[torch.cat(slots).long()].double().cpu().numpy()
    known = np.isfinite(values)
    starts = np.cumsum([0, *(len(part) for part in slots[:-1])])
    total = np.add.reduceat(np.where(known, values, 0.0), starts)
    count = np.add.reduceat(known, starts, dtype=np.int64)
    table.surprisal_nats[rows] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    table.surprisal_read[rows] = True
