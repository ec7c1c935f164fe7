"""Which cached prefix to forget: a pure decision over plain facts, for a server's tree and for replays of traces."""

from sgl_entropic.eviction.groups import Touch, group_of, turn_of
from sgl_entropic.eviction.policy import NEEDED_RANK, EvictionPolicy, Leaves, needed_rank, plain_rank
from sgl_entropic.eviction.returns import Visit
from sgl_entropic.eviction.settings import EvictionSettings

__all__ = [
    "NEEDED_RANK",
    "EvictionPolicy",
    "EvictionSettings",
    "Leaves",
    "Touch",
    "Visit",
    "group_of",
    "needed_rank",
    "plain_rank",
    "turn_of",
]
