"""Rounds of GSM8K: lm-eval in a process of its own, and what it did filed per sample."""
