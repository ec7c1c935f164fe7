"""Settings that are accepted and change nothing, since what they belong to is off: somebody forgot its switch."""

from __future__ import annotations

from sgl_entropic.config.knobs import FlagSpec, sections_of, setting, specs_of
from sgl_entropic.config.model import EntropicConfig

# What works only beside another section.
_BESIDE_GRAVITY = ("scheduling.tier_margin", "eviction.surprisal_weight")


def without_effect(config: EntropicConfig) -> list[str]:
    """What to warn of at start: one sentence for each missing switch, naming it; none for the defaults.

    A section that is on by default was switched off on purpose, so nothing is said of the rest of it.
    """
    missing: dict[str, list[str]] = {}
    for spec in specs_of(EntropicConfig):
        section, _, name = spec.dotted.partition(".")
        value = getattr(getattr(config, section), name)
        changed = value != sections_of(EntropicConfig)[section].model_fields[name].default
        if changed and (switch := _missing_switch(config, spec)):
            missing.setdefault(switch, []).append(f"{spec.dotted} = {setting(value)}")
    return [
        f"{', '.join(settings)} {'has' if len(settings) == 1 else 'have'} no effect without {switch}"
        for switch, settings in missing.items()
    ]


def _missing_switch(config: EntropicConfig, spec: FlagSpec) -> str:
    """The flag without which a setting that is not its default does nothing; empty where nothing is missing."""
    section = spec.dotted.partition(".")[0]
    fields = sections_of(EntropicConfig)[section].model_fields
    if "enabled" in fields and not getattr(config, section).enabled:
        return "" if fields["enabled"].default else f"{_flag(f'{section}.enabled')} on"
    if spec.dotted in _BESIDE_GRAVITY and not config.gravity.enabled:
        return f"{_flag('gravity.enabled')} on"
    if spec.dotted == "trace.queue_records" and config.trace.path is None and config.trace.publish is None:
        return f"{_flag('trace.path')} or {_flag('trace.publish')}"
    return ""


def _flag(dotted: str) -> str:
    return next(spec.flag for spec in specs_of(EntropicConfig) if spec.dotted == dotted)
