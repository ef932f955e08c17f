"""The lm-eval process: `python -m kvbench.workloads.gsm8k.child FOLDER`.

The only module that imports lm_eval. Task, prompts, filters, metric and the request body are
lm-eval's; kvbench sends what it made (`sending`). The trap: lm-eval cuts a prompt that is too long
on the left, without an error, and scores the answer to another question; here nothing is sent then.
`_create_payload` and `generate_until` are not a public interface: the version is pinned, and a test
runs the real one.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import lm_eval
import msgspec
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

from kvbench.workloads.gsm8k import spec as files
from kvbench.workloads.gsm8k.sending import (
    COMPLETIONS_PATH,
    Prompt,
    Sender,
    ServerLostError,
)
from kvbench.workloads.gsm8k.spec import (
    Asking,
    DataFiles,
    Ended,
    FilterName,
    Lines,
    Loaded,
    Result,
    ScoredRow,
    Spec,
)

FILTERS: Final[Mapping[str, FilterName]] = {
    "strict-match": "strict",
    "flexible-extract": "flexible",
}
METRIC: Final = "exact_match"
NOTHING_FOUND: Final = "[invalid]"
"""what the tool's regex filter writes where nothing matches"""
SEEDS: Final = {"random_seed": 0, "numpy_random_seed": 1234, "torch_random_seed": 1234}
"""lm-eval's own; nothing of a GSM8K round depends on them"""
_PACKAGES: Final = ("lm_eval", "datasets", "transformers", "tokenizers", "aiohttp")
_FAILED: Final = 3
"""exit status where the last line says why"""


class PromptTooLongError(Exception):
    """A prompt that the server could only take in parts."""


class DataError(Exception):
    """The data cannot make the round that was asked for."""


class RecordingCompletions(LocalCompletionsAPI):  # type: ignore[misc, unused-ignore]
    """lm-eval's model for an OpenAI-compatible server, with a sender that keeps what was said."""

    def __init__(self, spec: Spec, lines: Lines) -> None:
        super().__init__(
            model=spec.model_id,
            base_url=spec.url + COMPLETIONS_PATH,
            tokenizer=spec.tokenizer,
            tokenizer_backend="none" if spec.tokenizer is None else "huggingface",
            trust_remote_code=spec.trust_remote_code,
            max_length=spec.max_length_tokens,
            max_gen_toks=spec.max_new_tokens,
            num_concurrent=spec.concurrency,
            batch_size=1,
            seed=spec.seed,
        )
        self._spec = spec
        self._lines = lines
        self.sender = Sender(spec, lines)
        self.prompts: list[Prompt] = []
        self.generation: dict[str, object] = {}

    def _create_payload(self, messages: Any, **options: Any) -> dict[str, Any]:
        body: dict[str, Any] = super()._create_payload(messages, **options)
        if options.get("generate"):
            body |= {
                "stream": False,
                "logprobs": self._spec.top_logprobs,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            }
        return body

    def generate_until(
        self,
        requests: list[Instance],
        disable_tqdm: bool = False,  # noqa: ARG002 - lm-eval's signature
    ) -> list[str]:
        """Ask all questions; an answer that failed counts as empty here and as lost in the record.

        Raises PromptTooLongError before anything is sent, and ServerLostError.
        """
        wanted = self._spec.samples
        if wanted is not None and len(requests) < wanted:
            raise DataError(f"{wanted} questions are asked for, the data has {len(requests)}")
        self.generation = dict(requests[0].args[1])
        self.prompts = self._prompts(requests)
        _refuse_long(self.prompts, self._spec.max_length_tokens)
        lengths = [len(prompt.ids) for prompt in self.prompts if prompt.ids is not None]
        self._lines.write(
            Asking(prompts=len(self.prompts), longest_tokens=max(lengths, default=None))
        )
        # The order of lm-eval's own sending: the longest text first.
        order = sorted(self.prompts, key=lambda prompt: -len(prompt.text))
        asyncio.run(self.sender.send(order))
        return [self.sender.answers[prompt.doc_id].text or "" for prompt in self.prompts]

    def _prompts(self, requests: Sequence[Instance]) -> list[Prompt]:
        texts = [request.args[0] for request in requests]
        encoded: Sequence[list[int] | None] = [None] * len(texts)
        if self.tokenized_requests:
            encoded = self.tok_encode(texts, add_special_tokens=self.add_bos_token)
        return [
            Prompt(
                doc_id=request.doc_id,
                text=text,
                ids=None if ids is None else tuple(ids),
                body=self._create_payload(
                    self.create_message([text if ids is None else ids]),
                    generate=True,
                    gen_kwargs=copy.deepcopy(request.args[1]),
                    seed=self._seed,
                ),
            )
            for request, text, ids in zip(requests, texts, encoded, strict=True)
        ]

    def prompt_ids(self) -> dict[int, Sequence[int]]:
        """Token ids of each prompt: as they were sent, or as the server says it saw them."""
        sent = {prompt.doc_id: prompt.ids for prompt in self.prompts if prompt.ids is not None}
        # In the order of the questions: answers come in another one every time.
        return dict(sorted((self.sender.echoed | sent).items()))


def _refuse_long(prompts: Sequence[Prompt], limit_tokens: int) -> None:
    sizes = {
        prompt.doc_id: len(prompt.ids) + int(prompt.body["max_tokens"])
        for prompt in prompts
        if prompt.ids is not None
    }
    long = {doc_id: size for doc_id, size in sizes.items() if size > limit_tokens}
    if long:
        worst = max(long, key=lambda doc_id: long[doc_id])
        raise PromptTooLongError(
            f"{len(long)} of {len(prompts)} prompts do not fit: question {worst} needs "
            f"{long[worst]} tokens with its answer, the server takes {limit_tokens}; "
            "ask with fewer shots or a larger max_model_len"
        )


def write_task(spec: Spec, folder: Path) -> Path:
    """Write the task's YAML: the stock task, with another source of data or another sampler."""
    found = find_spec("lm_eval")
    assert found is not None
    assert found.submodule_search_locations is not None
    stock = Path(found.submodule_search_locations[0]) / "tasks" / "gsm8k" / "gsm8k.yaml"
    task: dict[str, Any] = {"include": str(stock), "task": spec.task}
    if spec.data is not None:
        task |= _data_keys(spec.data)
    if spec.shots_kind == "first_n":
        task["fewshot_config"] = {"sampler": "first_n"}
    folder.mkdir(exist_ok=True)
    path = folder / f"{spec.task}.yaml"
    path.write_bytes(msgspec.yaml.encode(task))
    return path


def _data_keys(data: DataFiles) -> dict[str, Any]:
    return {
        "dataset_path": data.builder,
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"train": data.train, "test": data.test}},
    }


def evaluate(spec: Spec, folder: Path, lines: Lines) -> Result:
    """Ask all questions of one round and have them scored by the tool."""
    lines.write(Loaded(tool_version=version("lm_eval")))
    tasks = folder / files.TASKS
    write_task(spec, tasks)
    model = RecordingCompletions(spec, lines)
    try:
        found = lm_eval.simple_evaluate(
            model=model,
            tasks=[spec.task],
            num_fewshot=spec.shots,
            batch_size=1,
            limit=spec.samples,
            task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
            log_samples=True,
            fewshot_random_seed=spec.seed,
            **SEEDS,
        )
    finally:
        ids = model.prompt_ids()
        (folder / files.PROMPTS).write_bytes(msgspec.json.encode(ids))
    return _result(spec, found, model)


def _result(spec: Spec, found: Mapping[str, Any], model: RecordingCompletions) -> Result:
    failed = {doc for doc, answer in model.sender.answers.items() if answer.error is not None}
    scores = found["results"][spec.task]
    task_version = found["versions"].get(spec.task)
    return Result(
        task=spec.task,
        task_version=None if task_version is None else str(task_version),
        task_hash=_task_hash(found["samples"][spec.task]),
        tool_version=version("lm_eval"),
        versions=_versions(),
        shots=found["n-shot"].get(spec.task),
        asked=len(model.prompts),
        answered=len(model.sender.answers) - len(failed),
        # The tool takes an answer that never came for a wrong one.
        scores={} if failed else {ours: _score(scores, name) for name, ours in FILTERS.items()},
        rows=tuple(_row(row) for row in found["samples"][spec.task] if row["doc_id"] not in failed),
        generation=model.generation,
        seeds={**SEEDS, "fewshot_random_seed": spec.seed, "request_seed": spec.seed},
    )


def _task_hash(rows: Sequence[Mapping[str, Any]]) -> str:
    """Digest over documents, prompts and targets, by the rule of lm-eval's own result files."""
    words = (row["doc_hash"] + row["prompt_hash"] + row["target_hash"] for row in rows)
    return hashlib.sha256("".join(words).encode()).hexdigest()


def _score(scores: Mapping[str, Any], name: str) -> tuple[float | None, float | None]:
    return _number(scores.get(f"{METRIC},{name}")), _number(scores.get(f"{METRIC}_stderr,{name}"))


def _number(value: object) -> float | None:
    """lm-eval writes `N/A` where it has no figure."""
    return float(value) if isinstance(value, int | float) else None


def _row(row: Mapping[str, Any]) -> ScoredRow:
    (answer,) = row["filtered_resps"]
    return ScoredRow(
        doc_id=row["doc_id"],
        filter=FILTERS[row["filter"]],
        answer=None if answer == NOTHING_FOUND else answer,
        correct=bool(row[METRIC]),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def main(folder: Path) -> int:
    """Run the round that the folder's spec describes; 0 only for a complete one."""
    spec = msgspec.json.decode((folder / files.SPEC).read_bytes(), type=Spec)
    with (folder / files.LINES).open("ab") as file:
        lines = Lines(file)
        try:
            result = evaluate(spec, folder, lines)
        except ServerLostError as error:
            lines.write(Ended(kind="server_lost", message=str(error)))
            return _FAILED
        except PromptTooLongError as error:
            lines.write(Ended(kind="prompt_too_long", message=str(error)))
            return _FAILED
        except DataError as error:
            lines.write(Ended(kind="data", message=str(error)))
            return _FAILED
        files.write(folder / files.RESULT, result)
        lines.write(Ended(kind="complete"))
    return 0


if __name__ == "__main__":
    _status = main(Path(sys.argv[1]))
    sys.stderr.flush()
    # The interpreter takes a second to take lm-eval apart; all that counts is on disk.
    os._exit(_status)
