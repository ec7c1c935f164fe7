"""Helpers for tests and benchmarks, ours and users': real servers, and stock SGLang on the same machine."""
