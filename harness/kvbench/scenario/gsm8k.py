"""The GSM8K workload: rounds of lm-eval's own task, the same questions in every round and arm.

The trap: two ways to draw the few-shot examples look alike in a table and are different benchmarks.
lm-eval draws other examples for each question; `first_n` puts the same ones before all of them, so
that nearly the whole prompt hits.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from kvbench.events import ResetScope
from kvbench.scenario.base import StrictModel

JSONL_SUFFIXES: Final = frozenset({".jsonl", ".json"})
PARQUET_SUFFIX: Final = ".parquet"


class OwnProblems(StrictModel):
    """Grade-school problems that come with kvbench; a score on them is no GSM8K score."""

    kind: Literal["own"] = Field(description="kvbench's own problems, for tests and CPU runs")


class ProblemFiles(StrictModel):
    """GSM8K, or rows in its shape, in files of this machine."""

    kind: Literal["files"] = Field(description="files with rows of `question` and `answer`")
    train: str = Field(description="the few-shot examples: a .jsonl or .parquet file")
    test: str = Field(description="the questions: a file of the same format")

    @model_validator(mode="after")
    def _one_format(self) -> ProblemFiles:
        formats = {file_format(name) for name in (self.train, self.test)}
        if len(formats) > 1:
            raise ValueError("train and test: both must be .jsonl files or both .parquet files")
        return self


class HubProblems(StrictModel):
    """GSM8K as lm-eval loads it by itself: from the Hugging Face hub, or its local cache."""

    kind: Literal["hub"] = Field(description="openai/gsm8k from the hub or its local cache")


ProblemData = Annotated[OwnProblems | ProblemFiles | HubProblems, Field(discriminator="kind")]


class Gsm8kWorkload(StrictModel):
    """GSM8K through lm-eval, in rounds, between snapshots; eviction comes from the load itself."""

    kind: Literal["gsm8k"] = Field(description="GSM8K through lm-eval, in rounds")
    samples: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        default="all", description="how many questions, from the first on; all: the whole test set"
    )
    shots: int = Field(default=5, ge=0, description="few-shot examples in each prompt")
    shots_kind: Literal["stock", "first_n"] = Field(
        default="stock",
        description="stock: lm-eval draws examples for each question; first_n: the same first "
        "examples before every question (a shared prefix; its scores are not comparable)",
    )
    concurrency: int = Field(default=1, ge=1, description="requests under way at the same time")
    rounds: int = Field(default=2, ge=1, description="how often all questions are asked")
    reset_between_rounds: ResetScope = Field(
        default="none",
        description="proved reset before rounds 2 and later; round 1 begins after a reset of all",
    )
    max_new_tokens: int = Field(
        default=256, ge=1, description="limit of an answer; 256 is lm-eval's own"
    )
    top_logprobs: int = Field(
        default=5, ge=1, le=20, description="log-probabilities per generated position"
    )
    data: ProblemData = Field(description="where the questions and examples come from")
    seed: int = Field(
        default=1234, description="seed of the few-shot draw and of requests; 1234 is lm-eval's own"
    )
    start_limit_s: float = Field(
        default=300,
        gt=0,
        description="longest time in which lm-eval says nothing while it loads and scores",
    )
    round_limit_s: float = Field(default=7200, gt=0, description="longest time of one round")
    store_limit_s: float = Field(default=30, gt=0, description="longest wait for stores")
    reset_limit_s: float = Field(default=30, gt=0, description="longest time for a reset")
    drain_limit_s: float = Field(
        default=30, gt=0, description="longest wait for counters to reach what was sent"
    )


def file_format(name: str) -> Literal["json", "parquet"]:
    """Return the `datasets` builder of a file, by its suffix; raises ValueError for others."""
    suffix = f".{name.rpartition('.')[2].lower()}"
    if suffix in JSONL_SUFFIXES:
        return "json"
    if suffix == PARQUET_SUFFIX:
        return "parquet"
    raise ValueError(f"{name}: name a .jsonl or a .parquet file")
