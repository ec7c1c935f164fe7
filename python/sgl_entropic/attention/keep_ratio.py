"""How much of the context is kept at an entropy."""

from __future__ import annotations

from sgl_entropic.attention.settings import AttentionSettings


def keep_ratio(entropy_nats: float, settings: AttentionSettings) -> float:
    """``clip(r_min + (1 - r_min) max(H, H_floor) / H_ref, r_min, r_max)``, the share of the context to keep.

    Certain steps read little, uncertain ones much. Non-decreasing in ``entropy_nats``.
    """
    least = settings.min_keep_ratio
    raised = (
        least + (1 - least) * max(entropy_nats, settings.floor_entropy_nats) / settings.reference_entropy_nats
    )
    return min(max(raised, least), max(settings.max_keep_ratio, least))
