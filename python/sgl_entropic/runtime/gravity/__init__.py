"""Narrative gravity in the scheduler process: hidden states are scored on the device, tiers are decided on the host."""

from sgl_entropic.runtime.gravity.fleet import fleet_share

__all__ = ["fleet_share"]
