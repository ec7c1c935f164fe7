"""Malformed requests, flags and files: each a clear error, none a traceback, a hang or a dead server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from sgl_entropic.testing.servers import Server

pytestmark = pytest.mark.e2e

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
COMPLETION = {"prompt": "Hi", "max_tokens": 2}
DEEP: Any = 1
for _ in range(40):
    DEEP = {"a": DEEP}

# What is put into custom_params, and what the message must name.
CUSTOM_PARAMS: list[tuple[Any, tuple[str, ...]]] = [
    ("entropic", ("custom_params", "'entropic'", "object")),
    ([1, 2], ("custom_params", "[1, 2]", "object")),
    (7, ("custom_params", "7", "object")),
    (True, ("custom_params", "True", "object")),
    ({"entropic": "yes"}, ("custom_params.entropic", "'yes'", "object")),
    ({"entropic": [True]}, ("custom_params.entropic", "[True]", "object")),
    ({"entropic": {"return_entropi": True}}, ("return_entropi", "return_entropy")),
    ({"entropic": {"return_entropy": "true"}}, ("return_entropy", "'true'", "true or false")),
    ({"entropic": {"return_entropy": 1}}, ("return_entropy", "1", "true or false")),
    ({"entropic": {"return_prompt_surprisal": []}}, ("return_prompt_surprisal", "[]", "true or false")),
    ({"entropic": {"return_summary": 0.5}}, ("return_summary", "0.5", "true or false")),
    ({"entropic": {"return_entropy": {"x": 1}}}, ("return_entropy", "true or false")),
    ({"entropic": {"": True}}, ("''",)),
    ({"entropic_target": 2.0}, ("entropic_target", "entropic")),
    ({"Entropic": {}}, ("Entropic", "entropic")),
    ({"entropc": {}}, ("entropc", "entropic")),
    ({"mine": {"deep": {"deeper": 1}}}, ("mine.deep",)),
    ({"mine": [[1]]}, ("mine[0]",)),
    ({"mine": DEEP}, ("mine.a",)),
    ({"mine": 2**63}, ("mine", str(2**63))),
    ({"mine": {"n": [1]}}, ("mine.n",)),
    ({f"k{i}": i for i in range(1000)}, ("custom_params", "1000")),
    ({"mine": "x" * 100_000}, ("mine", "100000")),
]


@pytest.fixture(scope="module")
def model(server: Server) -> str:
    return str(httpx.get(server.url + "/v1/models").json()["data"][0]["id"])


@pytest.mark.parametrize("route", ["/generate", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_custom_params(server: Server, model: str, route: str, *, stream: bool) -> None:
    """Every malformed ``custom_params`` is a 400 that names the key, on every route, streaming or not."""
    for custom, named in CUSTOM_PARAMS:
        if route == "/generate":
            body: dict[str, Any] = {
                "text": "Hi",
                "sampling_params": {"max_new_tokens": 2, "custom_params": custom},
            }
        else:
            body = {**(CHAT if "chat" in route else COMPLETION), "model": model, "custom_params": custom}
        response = httpx.post(server.url + route, json={**body, "stream": stream}, timeout=120)
        assert response.status_code == 400, (custom, response.text[:300])
        for word in named:
            assert word in json.dumps(response.json(), ensure_ascii=False).replace("\\\\", "\\"), (
                custom,
                word,
                response.text,
            )


@pytest.mark.parametrize("route", ["/generate", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("value", ["yes", 1, [], {}, 0.5])
def test_top_level_return_entropy(server: Server, model: str, route: str, value: Any) -> None:
    """The convenience at the top level takes true or false only."""
    body = {"/generate": {"text": "Hi"}, "/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}[route]
    response = httpx.post(
        server.url + route, json={**body, "model": model, "return_entropy": value}, timeout=120
    )
    assert response.status_code == 400
    assert "return_entropy" in response.text
    assert "true or false" in response.text


def test_hidden_names_are_found(server: Server) -> None:
    """JSON escapes do not smuggle a malformed parameter past the check."""
    raw = rb'{"text": "Hi", "sampling_params": {"\u0063ustom_params": {"\u0065ntropic": {"foo": true}}}}'
    response = httpx.post(
        server.url + "/generate", content=raw, headers={"content-type": "application/json"}, timeout=120
    )
    assert response.status_code == 400
    assert "foo" in response.text


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'"custom_params"', b"\xff\xfe", b'{"custom_params": ' + b"[" * 5000]
)
@pytest.mark.parametrize("route", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_broken_bodies(server: Server, route: str, raw: bytes) -> None:
    """What is no JSON object stays SGLang's to refuse, and it does."""
    response = httpx.post(
        server.url + route, content=raw, headers={"content-type": "application/json"}, timeout=120
    )
    assert 400 <= response.status_code < 500


def test_one_malformed_entry_of_a_batch(server: Server) -> None:
    """A batch with one bad entry is refused whole, before anything of it runs."""
    good, bad = {"max_new_tokens": 2}, {"max_new_tokens": 2, "custom_params": {"entropic": {"x": 1}}}
    response = httpx.post(
        server.url + "/generate", json={"text": ["a", "b"], "sampling_params": [good, bad]}, timeout=120
    )
    assert response.status_code == 400
    assert "'x'" in response.text


def test_contradiction(server: Server, model: str) -> None:
    """Two places that say the opposite are an error that names both."""
    body = {
        **CHAT,
        "model": model,
        "return_entropy": False,
        "custom_params": {"entropic": {"return_entropy": True}},
    }
    response = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 400
    assert "custom_params.entropic.return_entropy" in response.text


@pytest.mark.parametrize(
    "custom", [{}, {"thinking": {"a": 1}}, {"mine": [1, "x", None]}, {"entropy": 1}, {"entropic": {}}, None]
)
def test_foreign_keys_pass(server: Server, custom: Any) -> None:
    """Keys of other extensions are served."""
    body = {"text": "Hi", "sampling_params": {"max_new_tokens": 2, "custom_params": custom}}
    assert httpx.post(server.url + "/generate", json=body, timeout=120).status_code == 200


SMALL = {"max_new_tokens": 2}
DEADLY: list[tuple[dict[str, Any], str]] = [
    ({"text": "", "sampling_params": SMALL}, "1 token"),
    ({"text": ["fine", ""], "sampling_params": SMALL}, "1 token"),
    ({"input_ids": [1, 999_999], "sampling_params": SMALL}, "999999"),
    ({"input_ids": [1, -2], "sampling_params": SMALL}, "-2"),
    ({"text": "Hi", "sampling_params": {**SMALL, "top_k": 2**40}}, str(2**40)),
    ({"text": "Hi", "sampling_params": {**SMALL, "top_k": 1e20}}, "1e+20"),
    ({"text": "Hi", "sampling_params": {**SMALL, "temperature": 1e39}}, "0 to 1e+06"),
    ({"text": "Hi", "sampling_params": {**SMALL, "top_p": 1e-46}}, "1e-30 to 1"),
    ({"text": "Hi", "sampling_params": {**SMALL, "n": 10**7}}, str(10**7)),
    (
        {"text": "Hi", "sampling_params": {**SMALL, "min_new_tokens": 1, "stop_token_ids": [10**9]}},
        str(10**9),
    ),
    ({"text": "Hi", "sampling_params": SMALL, "return_logprob": True, "top_logprobs_num": 10**6}, "1000000"),
    ({"text": "Hi", "sampling_params": SMALL, "positional_embed_overrides": 1}, "positional_embed_overrides"),
]


@pytest.mark.parametrize(("body", "named"), DEADLY, ids=range(len(DEADLY)))
def test_what_ends_a_scheduler_is_refused(server: Server, body: dict[str, Any], named: str) -> None:
    """What no tensor holds, most of which stops a stock server; here it is a 400, also in a stream of errors."""
    response = httpx.post(server.url + "/generate", json=body, timeout=120)
    assert response.status_code == 400
    assert named in response.text
    streamed = httpx.post(server.url + "/generate", json={**body, "stream": True}, timeout=120)
    assert named in streamed.text
    assert server.alive()


@pytest.mark.parametrize(
    "route", ["/v1/responses", "/v1/messages", "/api/chat", "/api/generate", "/vertex_generate"]
)
@pytest.mark.parametrize(
    "ask", [{"return_entropy": True}, {"custom_params": {"entropic": {}}}, {"return_entropi": True}]
)
def test_routes_without_readings_say_so(server: Server, route: str, ask: dict[str, Any]) -> None:
    """Asking where nothing could be answered is an error that names the routes that answer."""
    response = httpx.post(server.url + route, json={"model": "m", "parameters": {}, **ask}, timeout=120)
    assert response.status_code == 400
    assert "return_entropy" in response.text or "/generate" in response.text


@pytest.mark.parametrize(
    "ask",
    [
        {"return_surprisal": True},
        {"return_entropy_nats": True},
        {"sgl_entropic": {}},
        {"extra_body": {"return_entropy": True}},
        {"custom_params": {"returnEntropy": True}},
        {"custom_params": {"sgl_entropic": {"return_entropy": True}}},
        {"custom_params": {"mine": {"return_entropy": True}}},
    ],
)
def test_near_misses(server: Server, model: str, ask: dict[str, Any]) -> None:
    """What can only have meant us is refused instead of being ignored."""
    response = httpx.post(
        server.url + "/v1/chat/completions", json={**CHAT, "model": model, **ask}, timeout=120
    )
    assert response.status_code == 400
    assert "entrop" in response.text


MISPLACED = {
    "target_entropy_nats": 2,
    "attention_pruning": False,
    "attention_policy": "quest",
    "min_keep_ratio": 0.5,
    "max_keep_ratio": 0.5,
    "return_summary": True,
    "sampling_mode": "exact",
    "sampling_gain": 0.1,
    "sampling_actuator": "min_p",
    "min_temperature_scale": 0.5,
    "max_temperature_scale": 2,
    "client_id": "a",
}


@pytest.mark.parametrize("route", ["/generate", "/v1/completions", "/v1/chat/completions", "/invocations"])
def test_parameters_alone_in_the_wrong_place(server: Server, model: str, route: str) -> None:
    """Each is refused with the place of the route, and what is put there is taken."""
    generate = route == "/generate"
    place = "sampling_params.custom_params.entropic" if generate else "custom_params.entropic"
    body = {**COMPLETION, "model": model} if route == "/v1/completions" else {**CHAT, "model": model}
    body = {"text": "Hi", "sampling_params": {"max_new_tokens": 2}} if generate else body
    for name, value in MISPLACED.items():
        response = httpx.post(server.url + route, json={**body, name: value}, timeout=120)
        assert response.status_code == 400, name
        assert f"expected {place}.{name}, " in response.text
    if generate:
        for name, value in MISPLACED.items():
            sampling = {"max_new_tokens": 2, name: value}
            response = httpx.post(
                server.url + route, json={"text": "Hi", "sampling_params": sampling}, timeout=120
            )
            assert response.status_code == 400
            assert f"expected {place}.{name}, " in response.text
    custom = {"custom_params": {"entropic": {"target_entropy_nats": 2}}}
    right = (
        {"text": "Hi", "sampling_params": {"max_new_tokens": 2, **custom}} if generate else {**body, **custom}
    )
    assert httpx.post(server.url + route, json=right, timeout=120).status_code == 200


def test_words_of_a_prompt_are_no_parameters(server: Server) -> None:
    text = (
        'Set "client_id": 1 and "attention_policy" : "quest", then ask for entropic "return_entropi" : true.'
    )
    body = {"text": text, "sampling_params": {"max_new_tokens": 2, "stop": ['"min_keep_ratio": 1']}}
    assert httpx.post(server.url + "/generate", json=body, timeout=120).status_code == 200


def test_the_server_still_serves(server: Server) -> None:
    """After all of the above."""
    assert server.alive()


# Flags: what is given, and what the message must name.
FLAGS: list[tuple[list[str], tuple[str, ...]]] = [
    (["--entropic-telemetry", "maybe"], ("--entropic-telemetry", "maybe", "on or off")),
    (
        ["--entropic-telemetry-prompt-surprisal", "2"],
        ("--entropic-telemetry-prompt-surprisal", "'2'", "on or off"),
    ),
    (
        ["--entropic-telemetry-prompt-chunk-rows", "3"],
        ("--entropic-telemetry-prompt-chunk-rows", "3", "16 to 8192"),
    ),
    (
        ["--entropic-telemetry-prompt-chunk-rows", "many"],
        ("--entropic-telemetry-prompt-chunk-rows", "many", "16 to 8192"),
    ),
    (["--entropic-trace-queue-records", "-1"], ("--entropic-trace-queue-records", "-1", "16 to 1000000")),
    (["--entropic-trace-publish", "http://x"], ("--entropic-trace-publish", "http://x", "ipc://")),
    (["--entropic-trace-publish", "tcp://127.0.0.1:99999"], ("--entropic-trace-publish", "99999", "65535")),
    (
        ["--entropic-trace-path", "/no/such/directory/x.jsonl"],
        ("--entropic-trace-path", "/no/such/directory", "directory"),
    ),
    (["--entropic-cpu-threads", "0"], ("--entropic-cpu-threads", "0", "1 to 1024")),
    (["--entropic-cpu-kv-pool-mib", "1"], ("--entropic-cpu-kv-pool-mib", "1", "64 to 1048576")),
    (["--entropic-config", "/no/such/file.yaml"], ("--entropic-config", "/no/such/file.yaml")),
    (["--entropic-nonsense", "1"], ("--entropic-nonsense",)),
    # Contradictions of what is off.
    (
        ["--entropic-attention-min-keep-ratio", "0.5", "--entropic-attention-max-keep-ratio", "0.3"],
        ("attention.max_keep_ratio = 0.3", "attention.min_keep_ratio = 0.5"),
    ),
    (
        ["--entropic-gravity-window", "4", "--entropic-gravity-top-k", "5"],
        ("gravity.top_k = 5", "gravity.window = 4"),
    ),
    (["--attention-backend", "flashinfer"], ("--attention-backend", "flashinfer", "torch_native")),
    (["--attention-backend", "intel_amx"], ("--attention-backend", "intel_amx", "torch_native")),
    (["--sampling-backend", "flashinfer"], ("--sampling-backend", "flashinfer", "pytorch")),
    (["--quantization", "fp8"], ("--quantization", "fp8")),
    (["--kv-cache-dtype", "fp8_e5m2"], ("--kv-cache-dtype", "fp8_e5m2")),
    (["--dtype", "float16"], ("--dtype", "float16", "float32")),
    (["--tp-size", "2"], ("--tp-size", "2")),
    (["--device", "cuda"], ("--device", "cuda", "cpu")),
    (["--speculative-algorithm", "NGRAM"], ("--speculative-algorithm", "NGRAM")),
    (["--enable-hierarchical-cache"], ("--enable-hierarchical-cache",)),
    (["--tokenizer-worker-num", "2"], ("--tokenizer-worker-num", "2")),
    (["--page-size", "16"], ("--page-size", "16")),
    (["--enable-lora", "--max-lora-rank", "8"], ("--enable-lora",)),
]
_PARSE = """
import contextlib, io, json, sys
from sgl_entropic import activation
from sgl_entropic.config import EntropicConfig
activation.export_config(EntropicConfig().to_json())
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args
load_plugins()
answers = []
for flags in json.loads(sys.argv[1]):
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            prepare_server_args(["--model-path", sys.argv[2], *flags])
        answers.append(None)
    except SystemExit as stop:
        answers.append(errors.getvalue() + str(stop.code))
print(json.dumps(answers))
"""


def test_flags(model_path: str) -> None:
    """Each is refused while flags are parsed, before any weight is read, by a sentence and not by a traceback."""
    command = [sys.executable, "-c", _PARSE, json.dumps([flags for flags, _ in FLAGS]), model_path]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    for (flags, named), message in zip(FLAGS, json.loads(result.stdout.splitlines()[-1]), strict=True):
        assert message is not None, f"{flags} was accepted"
        assert "Traceback" not in message
        for word in named:
            assert word in message, (flags, word, message)


def test_a_bad_file_stops_the_launcher_with_one_sentence(tmp_path: Path, model_path: str) -> None:
    """The real command, from start to exit."""
    config = tmp_path / "bad.yaml"
    config.write_text("telemetry:\n  prompt_chunk_rows: 3\n")
    command = [
        sys.executable,
        "-m",
        "sgl_entropic.launch_server",
        "--model-path",
        model_path,
        "--entropic-config",
        str(config),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    for word in ("sgl_entropic:", str(config), "telemetry.prompt_chunk_rows", "3", "16 to 8192"):
        assert word in last
    assert "Traceback" not in result.stderr
