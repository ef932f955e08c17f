"""Compares finished runs: what newly fails, what hits less, what got slower.

Two runs say something about a change only where that change is the one thing that differs. So the
settings are compared first, key by key, and unlike runs are refused. All of it is a pure function
of the records.
"""
