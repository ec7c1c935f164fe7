"""``transformers`` ``generate`` behind ``/v1/completions``: one request at a time, as a program that calls it would.

A script: ``hf_server.py --model DIRECTORY --host H --port P``. It is run by path in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

_END = -1
# What the detokenizer writes for a character that is not complete yet.
_INCOMPLETE = "\ufffd"


class TokenQueue(BaseStreamer):
    """Hands every token on as it is made; the streamers of transformers hold text back until a word ends."""

    def __init__(self) -> None:
        self.tokens: queue.Queue[int | Exception] = queue.Queue()
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        """The prompt first, then one token a call."""
        if self._prompt_seen:
            self.tokens.put(int(value.reshape(-1)[0]))
        self._prompt_seen = True

    def end(self) -> None:
        """No more tokens."""
        self.tokens.put(_END)


class Generator:
    """The model and its tokenizer; requests wait for each other."""

    def __init__(self, model: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._one = threading.Lock()

    def answer(self, body: dict[str, Any]) -> Any:
        """Pieces of text, and at last the usage.

        Raises:
            Exception: whatever ``generate`` raised.
        """
        inputs = self.tokenizer(body["prompt"], return_tensors="pt")
        most = int(body.get("max_tokens", 16))
        with self._one:
            streamer = TokenQueue()
            worker = threading.Thread(target=self._generate, args=(inputs, most, body, streamer))
            worker.start()
            ids: list[int] = []
            sent = ""
            while (token := streamer.tokens.get()) != _END:
                if isinstance(token, Exception):
                    raise token
                ids.append(token)
                text = self.tokenizer.decode(ids, skip_special_tokens=True)
                if not text.endswith(_INCOMPLETE):
                    yield text[len(sent) :]
                    sent = text
            worker.join()
        yield {
            "finish_reason": "length" if len(ids) == most else "stop",
            "usage": {"prompt_tokens": inputs["input_ids"].shape[1], "completion_tokens": len(ids)},
        }

    def _generate(self, inputs: Any, most: int, body: dict[str, Any], streamer: TokenQueue) -> None:
        least = most if body.get("ignore_eos") else 0
        try:
            with torch.inference_mode():
                self._model.generate(
                    **inputs, max_new_tokens=most, min_new_tokens=least, do_sample=False, streamer=streamer
                )
        except Exception as error:  # noqa: BLE001 -- handed to the thread that answers
            streamer.tokens.put(error)


class Handler(BaseHTTPRequestHandler):
    """``GET /health``, ``GET /v1/models`` and ``POST /v1/completions``."""

    generator: Generator

    def do_GET(self) -> None:
        """Healthy as soon as it listens: the model was loaded before."""
        content = {"/health": b"{}", "/v1/models": b'{"data": [{"id": "default"}]}'}.get(self.path)
        self._send(200 if content else 404, content or b"{}")

    def do_POST(self) -> None:
        """One completion, streamed if asked for."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            self._send(404, b"{}")
        elif body.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for part in self.generator.answer(body):
                self._event(part)
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            *pieces, last = self.generator.answer(body)
            choice = {"index": 0, "text": "".join(pieces), "finish_reason": last["finish_reason"]}
            self._send(200, json.dumps({"choices": [choice], "usage": last["usage"]}).encode())

    def _event(self, part: str | dict[str, Any]) -> None:
        if isinstance(part, str):
            event: dict[str, Any] = {"choices": [{"index": 0, "text": part, "finish_reason": None}]}
        else:
            choice = {"index": 0, "text": "", "finish_reason": part["finish_reason"]}
            event = {"choices": [choice], "usage": part["usage"]}
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name is the base class's
        """Nothing for each request."""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    Handler.generator = Generator(options.model)
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
