"""Real JSON schemas through structured generation with readings on: every finished answer must be well-formed JSON.

``--schemas FILE`` holds one ``{"id": ..., "schema": ...}`` a line, for example from the public jsonschemabench collection. A schema
that the grammar engine cannot compile must be refused with a 4xx and a message; an answer that reaches ``--tokens`` before
its grammar ends is counted as cut, and must be a prefix that the grammar allows. Afterwards the server must be alive and
idle with all KV slots back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import httpx
import jsonschema
from harness import claim, run_facts, write_result

from sgl_entropic.testing.servers import Server, entropic_server

CONCURRENCY = 8


async def one(http: httpx.AsyncClient, server: Server, row: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Outcome of one schema: ``valid``, ``unlike_schema``, ``malformed``, ``cut``, ``refused`` or ``error``."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "Give one short example of a JSON document of this kind."}],
        "max_tokens": tokens,
        "temperature": 0.7,
        "seed": 1,
        "return_entropy": True,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "document", "schema": row["schema"]},
        },
    }
    response = await http.post(server.url + "/v1/chat/completions", json=body)
    sample: dict[str, Any] = {"id": row["id"], "status": response.status_code}
    if response.status_code != 200:
        refused = 400 <= response.status_code < 500 and bool(response.json().get("message"))
        return {**sample, "outcome": "refused" if refused else "error", "message": response.text[:200]}
    answer = response.json()
    choice = answer["choices"][0]
    readings = choice["entropic"]
    sample["tokens"] = answer["usage"]["completion_tokens"]
    if len(readings["entropy_nats"]) != sample["tokens"]:
        return {**sample, "outcome": "error", "message": f"{len(readings['entropy_nats'])} readings"}
    if choice["finish_reason"] == "length":
        return {**sample, "outcome": "cut"}
    try:
        document = json.loads(choice["message"]["content"])
    except ValueError as error:
        return {**sample, "outcome": "malformed", "message": str(error)}
    try:
        jsonschema.validate(document, row["schema"])
    except (jsonschema.ValidationError, jsonschema.SchemaError) as error:
        # The grammar engine ignores some combinations of keywords; that is the same without this extension.
        return {**sample, "outcome": "unlike_schema", "message": str(error)[:200]}
    return {**sample, "outcome": "valid"}


async def all_schemas(server: Server, rows: list[dict[str, Any]], tokens: int) -> list[dict[str, Any]]:
    """Every schema, eight at a time."""
    gate = asyncio.Semaphore(CONCURRENCY)

    async with httpx.AsyncClient(timeout=1200) as http:

        async def gated(row: dict[str, Any]) -> dict[str, Any]:
            async with gate:
                sample = await one(http, server, row, tokens)
                print(sample["id"], sample["outcome"], flush=True)
                return sample

        return await asyncio.gather(*(gated(row) for row in rows))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schemas", type=Path, required=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.schemas.read_text().splitlines()][: options.count]
    folder = Path(tempfile.mkdtemp(prefix="structured_output_"))
    with entropic_server(folder / "server.log") as server:
        samples = asyncio.run(all_schemas(server, rows, options.tokens))
        idle = httpx.post(server.url + "/flush_cache", timeout=60).status_code == 200
        healthy = server.alive() and "memory leak" not in (folder / "server.log").read_text(errors="replace")
    names = ("valid", "unlike_schema", "malformed", "cut", "refused", "error")
    outcomes = {name: sum(s["outcome"] == name for s in samples) for name in names}
    finished = outcomes["valid"] + outcomes["unlike_schema"] + outcomes["malformed"]
    share = 1 - outcomes["malformed"] / finished if finished else 0.0
    whole = float(idle and healthy)
    claims = [
        claim("structured_well_formed_share", share, (share, share), "share of finished answers", ">= 1"),
        claim("structured_errors", outcomes["error"], (outcomes["error"],) * 2, "answers", "<= 0"),
        claim("structured_server_whole", whole, (whole, whole), "1 = alive and all slots back", ">= 1"),
    ]
    write_result(
        "structured_output",
        claims,
        run_facts(options.seed),
        samples,
        outcomes=outcomes,
        schemas=options.schemas.name,
    )


if __name__ == "__main__":
    main()
