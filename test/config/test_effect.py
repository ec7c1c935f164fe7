"""Who forgets a switch is told; who does not, hears nothing."""

from __future__ import annotations

from typing import Any

import pytest

from sgl_entropic.config import EntropicConfig, flag_specs, from_mapping, without_effect

FEATURES = ("scheduling", "attention", "gravity", "eviction")
# A value other than the default for some settings of each.
CHANGED: dict[str, dict[str, Any]] = {
    "scheduling": {"hold": False, "max_wait_tokens": 7},
    "attention": {"min_keep_ratio": 0.5, "policy": "quest"},
    "gravity": {"window": 16, "signal": "entropy"},
    "eviction": {"work_weight": 1.0, "ghost_ratio": 1.0},
}


def test_the_defaults_warn_of_nothing() -> None:
    assert without_effect(EntropicConfig()) == []


def test_every_section_with_a_switch_is_known_here() -> None:
    switches = {spec.dotted.partition(".")[0] for spec in flag_specs() if spec.dotted.endswith(".enabled")}
    assert switches == {*FEATURES, "telemetry"}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_switch_alone_warns_of_nothing(feature: str) -> None:
    assert without_effect(from_mapping({feature: {"enabled": True}}, "test")) == []
    assert without_effect(from_mapping({feature: {"enabled": True, **CHANGED[feature]}}, "test")) == []


@pytest.mark.parametrize("feature", FEATURES)
def test_settings_without_their_switch_are_told_together_with_it(feature: str) -> None:
    """In one sentence, with their values."""
    (warning,) = without_effect(from_mapping({feature: CHANGED[feature]}, "test"))
    assert warning.endswith(f" have no effect without --entropic-{feature} on")
    for name in CHANGED[feature]:
        assert f"{feature}.{name} = " in warning


@pytest.mark.parametrize("spec", flag_specs(), ids=lambda spec: spec.dotted)
def test_each_single_setting_of_a_feature_that_is_off_is_told(spec: Any) -> None:
    section, _, name = spec.dotted.partition(".")
    if section not in FEATURES or name == "enabled":
        return
    value = getattr(getattr(EntropicConfig(), section), name)
    own = EntropicConfig().model_copy(
        update={section: getattr(EntropicConfig(), section).model_copy(update={name: object()})}
    )
    (warning,) = without_effect(own)
    assert warning.startswith(f"{spec.dotted} = ")
    assert warning.endswith(f"has no effect without --entropic-{section} on")
    assert without_effect(from_mapping({section: {name: value}}, "test")) == []


def test_each_missing_switch_has_its_own_sentence() -> None:
    assert without_effect(from_mapping(CHANGED, "test")) == [
        "scheduling.hold = off, scheduling.max_wait_tokens = 7 have no effect without --entropic-scheduling on",
        "attention.policy = quest, attention.min_keep_ratio = 0.5 have no effect without --entropic-attention on",
        "gravity.signal = entropy, gravity.window = 16 have no effect without --entropic-gravity on",
        "eviction.work_weight = 1.0, eviction.ghost_ratio = 1.0 have no effect without --entropic-eviction on",
    ]


@pytest.mark.parametrize(
    ("mapping", "switch"),
    [
        ({"trace": {"queue_records": 16}}, "--entropic-trace-path or --entropic-trace-publish"),
        ({"scheduling": {"enabled": True, "tier_margin": 0.3}}, "--entropic-gravity on"),
        ({"eviction": {"enabled": True, "surprisal_weight": 1.0}}, "--entropic-gravity on"),
    ],
)
def test_what_needs_another_section(mapping: dict[str, Any], switch: str) -> None:
    (warning,) = without_effect(from_mapping(mapping, "test"))
    assert warning.endswith(f" has no effect without {switch}")


@pytest.mark.parametrize(
    "mapping",
    [
        {"trace": {"queue_records": 16, "publish": "tcp://127.0.0.1:5555"}},
        {"eviction": {"enabled": True, "surprisal_weight": 0.0}},
        {"gravity": {"enabled": True}, "scheduling": {"enabled": True, "tier_margin": 0.3}},
        {"telemetry": {"enabled": False, "prompt_surprisal": False, "prompt_chunk_rows": 64}},
        # Requests may have a target of their own.
        {"sampling": {"mode": "newton", "gain": 0.1}},
        {"cpu": {"threads": 2, "weights": "float32"}},
    ],
)
def test_what_has_an_effect_or_was_switched_off_is_not_told(mapping: dict[str, Any]) -> None:
    assert without_effect(from_mapping(mapping, "test")) == []
