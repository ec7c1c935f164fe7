"""Which blocks of the KV cache a decode step reads: pure functions and plain state, shared by all attention backends."""
