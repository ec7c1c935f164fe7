"""The fast path of the portable CPU platform: packed weights, paged attention, and the decoder as one call.

Data flows down: :mod:`.fast_path` builds on :mod:`.decoder`, :mod:`.attention`, :mod:`.fused_ops` and :mod:`.weights`,
and these on the compiled kernels.
"""
