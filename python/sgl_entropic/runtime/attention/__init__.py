"""Attention pruning in the scheduler process: what each request reads in this step, and what came of it."""
