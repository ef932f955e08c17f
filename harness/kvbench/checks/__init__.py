"""Checks: pure functions from a ledger to findings, one file per kind of proof."""
