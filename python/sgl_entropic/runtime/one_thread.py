"""Short tensor work on a CPU without waking the thread team.

The statistics of a few rows take a fraction of a millisecond. Shared among threads, every one of their dozen operations
ends in a barrier, and on a machine whose cores other processes also want, a barrier may wait for a whole time slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Run the block on the calling thread alone, when ``device`` is a CPU."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
