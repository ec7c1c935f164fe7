"""Runs models through SGLang's own ``ModelRunner`` on the portable CPU platform, without a server around it.

A program: ``model_process.py DIRECTORY`` reads ``jobs.json`` there. It loads SGLang once and forks for every job, so each
model is loaded into a process that has seen no other. A job leaves ``NAME.log`` and, when it went well, ``NAME.npz``
(``tokens`` [prompts, steps], ``logits`` [prompts, steps, vocab]) and ``NAME.json`` (the fast path's state, or null).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from array import array
from pathlib import Path
from typing import Any

import numpy as np


def main(directory: Path) -> None:
    """Load SGLang, then fork for every job."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    import sglang.benchmark.one_batch  # noqa: F401 -- before the forks

    for job in json.loads((directory / "jobs.json").read_text()):
        child = os.fork()
        if child == 0:
            with (directory / f"{job['name']}.log").open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            try:
                run(job, directory)
            except BaseException:  # noqa: BLE001 -- whatever it is, the child must not go on as a second parent
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        os.waitpid(child, 0)


def run(job: dict[str, Any], directory: Path) -> None:
    """One job, in its own process."""
    logging.basicConfig(level=logging.INFO, force=True)
    from sglang.benchmark import one_batch
    from sglang.srt.distributed import bootstrap
    from sglang.srt.server_args import PortArgs, prepare_server_args

    from sgl_entropic.runtime.active_config import active_config

    fast_path = "on" if active_config().cpu.fast_path else "off"
    arguments = ["--model-path", job["model_path"], "--skip-tokenizer-init", "--max-total-tokens", "4096"]
    server_args = prepare_server_args([*arguments, "--entropic-cpu-fast-path", fast_path, *job["flags"]])
    world_rank = one_batch.spawn_world_rank(server_args, tp_rank=0, pp_rank=0)
    one_batch.publish(
        server_args, role="scheduler", ranks=one_batch.SpawnRanks(world_rank=world_rank, gpu_id=0)
    )
    one_batch._init_process_global_configs()
    model_config = one_batch.ModelConfig.from_server_args(server_args)
    port = PortArgs.init_new(server_args).nccl_port
    bootstrap.init_parallel_runtime(
        server_args=server_args, device=one_batch.get_device().device, dist_port=port
    )
    bootstrap.init_layer_runtime(model_config=model_config)
    runner = one_batch.ModelRunner(
        model_config=model_config,
        mem_fraction_static=0.5,
        gpu_id=0,
        nccl_port=port,
        server_args=server_args,
    )
    runner.alloc_memory_pool()
    runner.init_attention_backends()
    runner.init_cuda_graphs()
    tokens, logits = greedy(one_batch, runner, job)
    np.savez(directory / f"{job['name']}.npz", tokens=tokens, logits=logits)
    (directory / f"{job['name']}.json").write_text(json.dumps(fast_path_state()))


def fast_path_state() -> dict[str, Any] | None:
    """As ``/server_info`` gives it; the fast path's modules are not loaded for this."""
    module = sys.modules.get("sgl_entropic.runtime.cpu.fast_path")
    installed = None if module is None else module.installed()
    return None if installed is None else installed.state()


def greedy(one_batch: Any, runner: Any, job: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Greedy tokens [prompts, steps] and the logits before each, all prompts in one batch.

    The first ``cut`` tokens of each prompt are prefilled by a pass of their own, and are cached tokens for the next.
    """
    requests = []
    for index, prompt in enumerate(job["prompts"]):
        request = one_batch.Req(
            rid=index,
            origin_input_text="",
            origin_input_ids=array("q", prompt[: job["cut"]]),
            sampling_params=one_batch.SamplingParams(temperature=0, max_new_tokens=job["steps"]),
        )
        request.full_untruncated_fill_ids = request.origin_input_ids
        request.logprob_start_len = -1
        request.extend_end = len(request.origin_input_ids)
        requests.append(request)
    one_batch.extend(requests, runner)
    for request, prompt in zip(requests, job["prompts"], strict=True):
        request.full_untruncated_fill_ids.extend(prompt[job["cut"] :])
        request.prefix_len = job["cut"]
        request.logprob_start_len = -1
        request.extend_end = len(prompt)
    chosen, logits, batch = one_batch.extend(requests, runner)
    all_tokens, all_logits = [chosen.numpy().copy()], [logits.float().numpy().copy()]
    for _ in range(job["steps"] - 1):
        chosen, logits = one_batch.decode(chosen, batch, runner)
        all_tokens.append(chosen.numpy().copy())
        all_logits.append(logits.float().numpy().copy())
    return np.stack(all_tokens, 1), np.stack(all_logits, 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
