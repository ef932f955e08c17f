"""Runs the rounds of GSM8K on one life, and files what they say.

A round is one window. A server that is lost in it ends the life; a tool that fails ends the rounds
of this stage and arm, because the ones that follow would begin with other caches than planned.
Either way the answers that came are filed, and no score.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvbench.errors import EngineError, PrerequisiteError
from kvbench.plan_types import Plan, PlannedPhase
from kvbench.scenario.connectors import Connector
from kvbench.scenario.gsm8k import Gsm8kWorkload, HubProblems, OwnProblems, file_format
from kvbench.workloads.driving import PhaseDriver
from kvbench.workloads.faults import FaultSwitch
from kvbench.workloads.gsm8k import spec as files
from kvbench.workloads.gsm8k.run import (
    CHILD_COMMAND,
    Limits,
    Round,
    ServerLostError,
    ToolError,
    Watching,
)
from kvbench.workloads.gsm8k.samples import evaluation_done, request_done, sample_events
from kvbench.workloads.gsm8k.spec import Answered, Asking, DataFiles, Result, Spec
from kvbench.workloads.reset_proof import Limits as ResetLimits
from kvbench.workloads.reset_proof import ResetRefusedError
from kvbench.workloads.stores import wait_for_stores
from kvbench.workloads.watchdog import Watchdog
from kvbench.workloads.window import Life, Window

OWN_PROBLEMS: Final = Path(__file__).parents[1] / "gsm8k_data"
OK: Final = 200
SERVER_ERROR: Final = 500


class Gsm8kDriver(PhaseDriver):
    """Drives the rounds of one stage and arm through a running engine.

    `tokenizer` is a directory or hub name, None where the server shall tokenize.
    """

    def __init__(
        self,
        life: Life,
        plan: Plan,
        workload: Gsm8kWorkload,
        connector: Connector,
        faults: FaultSwitch | None,
        *,
        tokenizer: str | None,
        trust_remote_code: bool = False,
        command: Sequence[str] = CHILD_COMMAND,
    ) -> None:
        limits = ResetLimits(reset_s=workload.reset_limit_s, store_s=workload.store_limit_s)
        super().__init__(life, plan, connector, faults, limits)
        self._workload = workload
        self._tokenizer = tokenizer
        self._trust_remote_code = trust_remote_code
        self._command = command
        self._broken: str | None = None

    def run(self, phase: PlannedPhase) -> None:
        """Run one round with the proof of its reset; skip it where an earlier one failed.

        Raises EngineError when the engine dies, hangs or drops a request.
        """
        self._life.progress.phase(phase.stage, phase.arm, phase.name, phase.concurrency)
        if self._broken is not None:
            self._skip(phase, self._broken)
            return
        if phase.reset != "none":
            try:
                self._prove_reset(phase)
            except ResetRefusedError as error:
                self._broken = f"{phase.name} was skipped: {error}"
                self._skip(phase, str(error))
                return
        try:
            with self._opened(phase) as window:
                self._round(window, phase)
        except ToolError as error:
            # The window is closed as aborted, with the reason; the server is well.
            first = str(error).partition("\n")[0]
            self._broken = f"{phase.name} was aborted: {first}"
            self._life.progress.say(f"{phase.name}: {error}", style="red")

    def _round(self, window: Window, phase: PlannedPhase) -> None:
        spec = self._spec(window, phase)
        with tempfile.TemporaryDirectory(prefix="kvb-gsm8k-") as name:
            round_ = self._new_round(spec, Path(name), window, phase)
            result = None
            try:
                result = self._ask(round_)
            finally:
                self._file_samples(round_.answers, result, window, phase)
                self._keep_files(round_.folder, window)
        counted = [answer.prompt_tokens for answer in round_.answers if answer.http_status == OK]
        known = [tokens for tokens in counted if tokens is not None]
        window.settle(len(known), sum(known))
        wait_for_stores(window, self._connector, self._workload.store_limit_s)
        self._life.record.write(
            evaluation_done(result, spec, life=self._life.life, window=window.id, number=phase.run)
        )

    def _ask(self, round_: Round) -> Result:
        """Run the tool; turn what it says about a lost server into what the engine did."""
        server = self._life.server
        try:
            return round_.run()
        except ServerLostError as error:
            server.check_alive()
            kind = "hang" if error.is_timeout else "connection"
            what = "no longer answers" if error.is_timeout else "dropped a request"
            raise EngineError(
                f"the engine {what} ({error}) though its process is alive",
                kind=kind,
                log_tail=server.log_tail(),
            ) from error
        except EngineError as error:
            server.check_alive()  # a death explains more than a hang
            raise EngineError(str(error), kind=error.kind, log_tail=server.log_tail()) from error

    def _new_round(self, spec: Spec, folder: Path, window: Window, phase: PlannedPhase) -> Round:
        life, server = self._life, self._life.server
        has_failed: list[Answered] = []

        def on_answer(answer: Answered) -> None:
            life.record.write(
                request_done(answer, life=life.life, window=window.id, stage=phase.stage)
            )
            life.progress.done(1)
            if (answer.http_status or 0) >= SERVER_ERROR:
                has_failed.append(answer)

        def on_asking(line: Asking) -> None:
            longest = "n/a" if line.longest_tokens is None else line.longest_tokens
            life.progress.detail(
                f"{phase.stage} / {phase.arm} / {phase.name}: {line.prompts} questions, "
                f"the longest prompt has {longest} tokens"
            )

        def look() -> None:
            if has_failed or not server.alive():
                has_failed.clear()
                server.check_alive()

        return Round(
            spec=spec,
            folder=folder,
            command=self._command,
            log=life.record.artifact(f"{life.life}/{window.id}-lm-eval.log"),
            limits=Limits(self._workload.start_limit_s, self._workload.round_limit_s),
            watching=Watching(
                on_answer=on_answer,
                on_asking=on_asking,
                look=look,
                make_watch=lambda: Watchdog(life.client, life.progress_limit_s),
            ),
        )

    def _spec(self, window: Window, phase: PlannedPhase) -> Spec:
        workload, client = self._workload, self._life.client
        return Spec(
            url=client.url,
            model_id=client.model_id,
            tokenizer=self._tokenizer,
            trust_remote_code=self._trust_remote_code,
            max_length_tokens=self._max_length_tokens(),
            task=task_name(workload),
            data=data_files(workload),
            samples=None if workload.samples == "all" else workload.samples,
            shots=workload.shots,
            shots_kind=workload.shots_kind,
            concurrency=phase.concurrency,
            max_new_tokens=phase.new_tokens,
            top_logprobs=phase.top_logprobs,
            seed=workload.seed,
            request_limit_s=client.request_limit_s,
            id_prefix=window.request_mark(f"{phase.stage}/").removesuffix("-"),
            engines=len(phase.engines),
        )

    def _max_length_tokens(self) -> int:
        """Ask the server; lm-eval's own default would cut prompts without a word."""
        client = self._life.client
        said = {model.get("id"): model.get("max_model_len") for model in client.models()}
        length = said.get(client.model_id)
        if not isinstance(length, int):
            raise ToolError(
                f"{client.url}/v1/models does not say max_model_len of {client.model_id}"
            )
        return length

    def _file_samples(
        self,
        answers: list[Answered],
        result: Result | None,
        window: Window,
        phase: PlannedPhase,
    ) -> None:
        for event in sample_events(
            answers, result, life=self._life.life, window=window.id, number=phase.run
        ):
            self._life.record.write(event)

    def _keep_files(self, folder: Path, window: Window) -> None:
        """Keep what the journal does not hold; equal prompts of several rounds only once."""
        record, life = self._life.record, self._life.life
        for name in (files.SPEC, files.RESULT):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, record.artifact(f"{life}/{window.id}-{name}"))
        prompts = folder / files.PROMPTS
        if prompts.is_file():
            data = prompts.read_bytes()
            digest = hashlib.sha256(data).hexdigest()[:16]
            kept = record.artifact(f"gsm8k/prompts-{digest}.json.gz")
            if not kept.is_file():
                kept.write_bytes(gzip.compress(data, mtime=0))


def task_name(workload: Gsm8kWorkload) -> str:
    """Name of the task in the record: only the stock task on GSM8K itself is called gsm8k."""
    name = "gsm8k_own" if isinstance(workload.data, OwnProblems) else "gsm8k"
    return name if workload.shots_kind == "stock" else f"{name}_{workload.shots_kind}"


def data_files(workload: Gsm8kWorkload) -> DataFiles | None:
    """Return the files of the data, None for the hub; raises PrerequisiteError for missing ones."""
    data = workload.data
    if isinstance(data, HubProblems):
        return None
    if isinstance(data, OwnProblems):
        train, test = OWN_PROBLEMS / "train.jsonl", OWN_PROBLEMS / "test.jsonl"
    else:
        train, test = Path(data.train).expanduser(), Path(data.test).expanduser()
    for path in (train, test):
        if not path.is_file():
            raise PrerequisiteError(f"gsm8k data: there is no file {path}; name another in `data`")
    return DataFiles(file_format(train.name), str(train.resolve()), str(test.resolve()))
