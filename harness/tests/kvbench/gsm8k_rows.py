"""Grade-school rows in GSM8K's shape, made by a rule."""

from __future__ import annotations

import json
from pathlib import Path

from kvbench.workloads.gsm8k.spec import DataFiles


def answer(number: int) -> int:
    return 3 * number + 4


def row(number: int, kind: str) -> dict[str, str]:
    # Lengths differ, so that the order in which they are sent can be seen.
    question = (
        f"{'Ada ' * (number % 5)}has {number} {kind} bags of 3 shells and 4 more shells. "
        "How many shells are there?"
    )
    total = answer(number)
    steps = f"The bags hold {number} x 3 = {3 * number}.\nThe total is {3 * number} + 4 = {total}."
    return {"question": question, "answer": f"{steps}\n#### {total}"}


def write(folder: Path, *, train: int = 8, test: int = 12) -> DataFiles:
    paths = []
    for name, count, first in (("train", train, 100), ("test", test, 0)):
        path = folder / f"{name}.jsonl"
        rows = [json.dumps(row(first + number, name)) for number in range(count)]
        path.write_text("\n".join(rows) + "\n")
        paths.append(str(path))
    return DataFiles("json", *paths)
