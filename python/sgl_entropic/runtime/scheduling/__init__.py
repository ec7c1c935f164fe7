"""Entropy-aware scheduling inside SGLang's scheduler process."""
