"""A stand-in for `python -m vllm.entrypoints.openai.api_server`: the same faces, no model.

Modes, as a word of the command line: see MODES. Standard library only; run as a script.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODES = {
    "fine",
    "late_generation",  # /health at once, the first generations are refused
    "late_counters",  # they lag the answers by several looks
    "no_reset",  # not in development mode
    "other_model",
    "cannot_generate",
    "silent",  # never listens, says nothing
    "talking",  # never listens, talks all the time
    "unknown_flag",
    "says_key",
    "dies_later",
    "stays",  # ignores SIGTERM, and so does its child
}
MODE = sys.argv[1]
PORT = int(sys.argv[sys.argv.index("--port") + 1])
NAME = sys.argv[sys.argv.index("--served-model-name") + 1]
STARTED = time.time()
generations = 0
answered = 0
"""what the counters show"""
looks = 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def count() -> None:
    global answered, looks  # noqa: PLW0603
    looks += 1
    if MODE == "late_counters" and looks > 4:
        answered = generations


class Handler(BaseHTTPRequestHandler):
    def give(self, status: int, value: object) -> None:
        body = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        name = "another" if MODE == "other_model" else NAME
        answers: dict[str, object] = {
            "/health": "",
            "/version": {"version": "0.0.1"},
            "/v1/models": {"data": [{"id": name, "root": "/m", "max_model_len": 2048}]},
            "/metrics": f"process_start_time_seconds {STARTED}\n"
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="8",engine="0"} 1.0\n'
            f'vllm:request_success_total{{engine="0",finished_reason="length"}} {answered}\n'
            f'vllm:prompt_tokens_total{{engine="0"}} {4 * answered}\n'
            'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting{engine="0"} 0\n',
        }
        path = self.path.partition("?")[0]
        if path == "/metrics":
            count()
        self.give(200, answers[path]) if path in answers else self.give(404, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/reset_prefix_cache"):
            self.give(404, {}) if MODE == "no_reset" else self.give(200, {"success": True})
        else:
            self.generate()

    def generate(self) -> None:
        global answered, generations  # noqa: PLW0603
        generations += 1
        if MODE == "cannot_generate":
            self.give(500, {"error": {"message": "EngineCore encountered an issue"}})
        elif MODE == "late_generation" and generations <= 2:
            self.give(503, {"error": {"message": "not yet"}})
        else:
            if MODE != "late_counters":
                answered += 1
            event = {"choices": [{"token_ids": [1], "finish_reason": "length"}]}
            self.give(200, f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")
            if MODE == "dies_later":
                say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.")
                os.kill(os.getpid(), signal.SIGKILL)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # noqa: A002
        pass


def main() -> None:
    assert MODE in MODES
    say("fake server starts")
    if MODE == "unknown_flag":
        say("usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --nope")
        sys.exit(2)
    if MODE == "says_key":
        say(f"non-default args: {{'api_key': ['{os.environ['VLLM_API_KEY']}']}}")
    if MODE == "stays":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    while MODE in {"silent", "talking"}:
        time.sleep(0.1)
        if MODE == "talking":
            say("still loading")
    ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()


if __name__ == "__main__":
    main()
