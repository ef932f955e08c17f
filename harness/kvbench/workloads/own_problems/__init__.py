"""Grade-school problems of our own in GSM8K's shape: generated, so that every answer is computed.

GSM8K itself is not shipped. `python -m kvbench.workloads.own_problems` writes the files of
`workloads/gsm8k_data` again, the same bytes with every Python. The templates of the examples and
those of the questions are different ones, so that no question has its own solution before it.
A score on them is no GSM8K score.
"""

from __future__ import annotations

from kvbench.workloads.own_problems.make import FILES, rows, write
from kvbench.workloads.own_problems.working import Problem, value_of

__all__ = ["FILES", "Problem", "rows", "value_of", "write"]
