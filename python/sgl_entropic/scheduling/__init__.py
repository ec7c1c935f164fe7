"""Entropy-aware scheduling: pure decisions over plain facts about requests, for the scheduler and for simulators."""

from sgl_entropic.scheduling.cost import CostModel
from sgl_entropic.scheduling.facts import RequestFacts, ServerFacts
from sgl_entropic.scheduling.policy import EntropicPolicy
from sgl_entropic.scheduling.prior import FlowPrior
from sgl_entropic.scheduling.priority import Score
from sgl_entropic.scheduling.remaining import RemainingBelief
from sgl_entropic.scheduling.settings import SchedulingSettings
from sgl_entropic.scheduling.start import MOST_PLAYED

__all__ = [
    "MOST_PLAYED",
    "CostModel",
    "EntropicPolicy",
    "FlowPrior",
    "RemainingBelief",
    "RequestFacts",
    "SchedulingSettings",
    "Score",
    "ServerFacts",
]
