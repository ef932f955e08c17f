"""Writes the files of `workloads/gsm8k_data`."""

from __future__ import annotations

from kvbench.workloads.own_problems.make import write

if __name__ == "__main__":
    write()
