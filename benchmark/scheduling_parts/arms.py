"""Policies by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from scheduling_parts.baselines import Fcfs, Hrrn, Lpm, Sjf, Srpt, Vtc
from scheduling_parts.engine import Policy
from scheduling_parts.entropic import Entropic
from sgl_entropic.scheduling import SchedulingSettings

OURS = "entropic"
NEUTRAL = "entropic_neutral"
_BASELINES = {"fcfs": Fcfs, "lpm": Lpm, "hrrn": Hrrn, "sjf": Sjf, "srpt": Srpt, "vtc": Vtc}
ARMS = (*_BASELINES, OURS, NEUTRAL)


def make_policy(name: str, settings: Mapping[str, float] | None = None) -> Policy:
    """A fresh policy; ``settings`` are of ours, where they differ from its defaults.

    Raises:
        ValueError: there is no such setting.
    """
    if name == NEUTRAL:
        return Entropic(SchedulingSettings.neutral(), admits=False)
    if name == OURS:
        return Entropic(_settings(settings or {}))
    return _BASELINES[name]()


def _settings(given: Mapping[str, float]) -> SchedulingSettings:
    base = SchedulingSettings()
    unknown = given.keys() - {field.name for field in fields(base)}
    if unknown:
        raise ValueError(f"the policy has no setting {', '.join(sorted(unknown))}")
    typed: dict[str, Any] = {name: type(getattr(base, name))(value) for name, value in given.items()}
    return replace(base, **typed)
