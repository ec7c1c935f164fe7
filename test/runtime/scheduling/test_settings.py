"""What the configuration says is what the policy gets."""

from __future__ import annotations

import dataclasses

from sgl_entropic.config.scheduling import SchedulingConfig
from sgl_entropic.runtime.scheduling.settings import settings_of
from sgl_entropic.scheduling import SchedulingSettings


def test_the_defaults_are_the_policy_s_own() -> None:
    """They stand in two places, since configuration knows nothing of policies."""
    assert settings_of(SchedulingConfig()) == SchedulingSettings()


def test_each_setting_arrives_and_no_other_changes() -> None:
    names = {"compute_weight": "alpha", "memory_weight": "beta", "latency_weight": "gamma"}
    default = SchedulingConfig()
    for name in SchedulingConfig.model_fields:
        if name in ("enabled", "retraction", "admission"):  # of the process, not of the policy
            continue
        value = False if name in ("hold", "pace") else getattr(default, name) + 1
        value = 0.5 if name == "tier_margin" else value
        changed = settings_of(SchedulingConfig(**{name: value}))
        assert changed == dataclasses.replace(SchedulingSettings(), **{names.get(name, name): value})
