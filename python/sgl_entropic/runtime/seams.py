"""Every touch on SGLang is a row of this table, installed from it and verified at start.

SGLang's plugin loader logs an exception and goes on, so a hook that did not take would leave a server that silently
measures nothing. :func:`verify` turns that into an error: each target must exist with the parameters written here, and
after installation it must really be ours.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sgl_entropic.errors import SeamError

SGLANG_VERSION = "0.5.23"


class Mechanism(StrEnum):
    """How SGLang lets us in, most official first."""

    PLATFORM = "platform entry point"
    REGISTRY = "registry"
    SUBCLASS = "class replacement by a subclass (HookRegistry REPLACE)"
    AROUND = "HookRegistry AROUND"
    BEFORE = "HookRegistry BEFORE"
    OVERRIDE = "method of a subclass"
    USE = "called, not changed"
    FIELDS = "fields read, not changed"


@dataclass(frozen=True, slots=True)
class Seam:
    """One touch on SGLang.

    Attributes:
        target: dotted path in SGLang.
        parameters: parameter names that the target must have, in order; ours are passed on unchanged.
        mechanism: how it is touched.
        ours: dotted path of our side; empty for things that are only used.
        why: what it is for.
        processes: where it acts.
        remove_when: what would make the row unnecessary.
    """

    target: str
    parameters: tuple[str, ...]
    mechanism: Mechanism
    ours: str
    why: str
    processes: tuple[str, ...]
    remove_when: str


_HERE = "sgl_entropic.runtime."
_NEVER = "upstream offers it as an official door"

SEAMS: tuple[Seam, ...] = (
    Seam(
        "sglang.srt.server_args.ServerArgs.add_cli_args",
        ("parser",),
        Mechanism.AROUND,
        _HERE + "server_args.around_add_cli_args",
        "our flags in the same --help",
        ("main",),
        "plugins can declare flags",
    ),
    Seam(
        "sglang.srt.server_args.ServerArgs.from_cli_args",
        ("cls", "args"),
        Mechanism.AROUND,
        _HERE + "server_args.around_from_cli_args",
        "resolve and export the configuration, refuse combinations",
        ("main",),
        "plugins can declare flags",
    ),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler",
        ("self", "server_args"),
        Mechanism.SUBCLASS,
        _HERE + "scheduler.EntropicScheduler",
        "telemetry of one rank, output fields, internal state",
        ("main", "scheduler"),
        _NEVER,
    ),
    Seam(
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
        ("self", "batch", "forward_batch"),
        Mechanism.AROUND,
        _HERE + "measuring.around_forward_batch_generation",
        "host facts of a step; prompts of requests that sample nothing",
        ("main", "scheduler"),
        "the sampling observer sees the schedule batch",
    ),
    Seam(
        "sglang.srt.layers.logits_processor.LogitsProcessor.forward",
        ("self", "input_ids", "hidden_states", "lm_head", "logits_metadata"),
        Mechanism.AROUND,
        _HERE + "measuring.around_logits_processor",
        "surprisal of new prompt tokens without switching the prefix cache off",
        ("main", "scheduler"),
        "an observer of prefill hidden states",
    ),
    Seam(
        "sglang.srt.layers.logits_processor.LogitsProcessor._get_logits",
        ("self", "hidden_states", "lm_head", "logits_metadata", "embedding_bias", "use_logits_buffer"),
        Mechanism.USE,
        "",
        "the LM head, with its scaling, gathering and capping",
        ("main", "scheduler"),
        "an observer of prefill hidden states",
    ),
    Seam(
        "sglang.srt.model_executor.model_runner.ModelRunner.forward",
        ("self", "forward_batch"),
        Mechanism.AROUND,
        _HERE + "measuring.around_forward",
        "the facts of a step travel with its batch to a delayed sampling step",
        ("main", "scheduler"),
        "the sampling observer sees the schedule batch",
    ),
    Seam(
        "sglang.srt.model_executor.model_runner.ModelRunner.sample",
        ("self", "logits_output", "forward_batch"),
        Mechanism.AROUND,
        _HERE + "measuring.around_sample",
        "the model's own distribution; SGLang's sampling observer sees it only after penalties",
        ("main", "scheduler"),
        "SamplingObserver gets a callback before penalties",
    ),
    Seam(
        "sglang.srt.layers.sampler.Sampler._preprocess_logits",
        ("self", "logits", "sampling_info"),
        Mechanism.REGISTRY,
        _HERE + "sampler.EntropicSampler",
        "the distribution that is really sampled from",
        ("main", "scheduler"),
        "SamplingObserver gets a callback after the grammar mask",
    ),
    Seam(
        "sglang.srt.layers.sampler.Sampler._sample_from_probs",
        ("self", "probs", "sampling_info", "positions", "simple_sampling_case"),
        Mechanism.REGISTRY,
        _HERE + "sampler.EntropicSampler",
        "its probabilities, which spare a second exponential where only a temperature is applied",
        ("main", "scheduler"),
        "SamplingObserver gets the probabilities",
    ),
    Seam(
        "sglang.srt.managers.schedule_batch.Req.init_next_round_input",
        ("self", "tree_cache", "cow_mamba"),
        Mechanism.AROUND,
        _HERE + "measuring.around_init_next_round_input",
        "recompute one page of a prefix hit, so that the next token's surprisal is exact",
        ("main", "scheduler"),
        "the cache keeps the logits of its boundaries",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request",
        ("self", "obj", "request"),
        Mechanism.AROUND,
        _HERE + "tokenizer_manager.around_generate_request",
        "validate per-request parameters on every route",
        ("main",),
        "a validation hook for custom_params",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
        ("self", "obj", "input_ids"),
        Mechanism.AROUND,
        _HERE + "request_guard.around_validate_one_request",
        "requests that would end the scheduler process are refused instead",
        ("main",),
        "SGLang checks token ids and integer ranges itself",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.update_request_meta_info",
        ("self", "meta_info", "state", "customized_info", "index", "finish_reason"),
        Mechanism.AROUND,
        _HERE + "tokenizer_manager.around_update_request_meta_info",
        "meta_info.entropic",
        ("main",),
        _NEVER,
    ),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.get_output_streamer_class",
        ("self",),
        Mechanism.OVERRIDE,
        _HERE + "scheduler.EntropicScheduler.get_output_streamer_class",
        "SGLang's own extension point for output fields",
        ("scheduler",),
        "never: it is an official door",
    ),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.init_internal_state",
        ("self",),
        Mechanism.OVERRIDE,
        _HERE + "scheduler.EntropicScheduler.init_internal_state",
        "counters in /server_info",
        ("scheduler",),
        "internal state takes contributions",
    ),
    Seam(
        "sglang.srt.managers.scheduler.Scheduler.get_init_info",
        ("self",),
        Mechanism.OVERRIDE,
        _HERE + "scheduler.EntropicScheduler.get_init_info",
        "the handshake that proves that a scheduler process is ours",
        ("scheduler",),
        "SGLang reports a plugin's failure to the launching process",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer.build_additional_customized_info",
        ("self", "reqs"),
        Mechanism.OVERRIDE,
        _HERE + "output_streamer.EntropicOutputStreamer.build_additional_customized_info",
        "readings on their way to the HTTP server",
        ("scheduler",),
        "never: it is an official door",
    ),
    Seam(
        "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController.get_internal_state",
        ("self", "recv_req"),
        Mechanism.OVERRIDE,
        _HERE + "scheduler.EntropicInternalState.get_internal_state",
        "counters in /server_info",
        ("scheduler",),
        "internal state takes contributions",
    ),
    Seam(
        "sglang.srt.managers.auxiliary_output.append_auxiliary_output",
        ("current", "output"),
        Mechanism.USE,
        "",
        "readings travel with SGLang's own copy of a step's results",
        ("main", "scheduler"),
        "never: it is an official door",
    ),
    Seam(
        "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.path_device_indices",
        ("self", "node"),
        Mechanism.USE,
        "",
        "the slot in the tree whose reading a recomputed token inherits",
        ("main", "scheduler"),
        "the match result says which slots it gave back",
    ),
    Seam(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch",
        (
            "forward_mode",
            "input_ids",
            "req_pool_indices",
            "out_cache_loc",
            "sampling_info",
            "extend_seq_lens_cpu",
            "extend_prefix_lens_cpu",
        ),
        Mechanism.FIELDS,
        "",
        "slots and rows of a step",
        ("main", "scheduler"),
        "never: the measuring hooks read them",
    ),
    Seam(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo",
        (
            "temperatures",
            "top_ks",
            "is_all_greedy",
            "grammars",
            "logit_bias",
            "acc_additive_penalties",
            "acc_scaling_penalties",
            "penalizer_orchestrator",
            "has_custom_logit_processor",
            "has_watermark_candidates",
        ),
        Mechanism.FIELDS,
        "",
        "the temperature, and whether sampling writes into the logits",
        ("main", "scheduler"),
        "never: the measuring hooks read them",
    ),
    Seam(
        "sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        ("server_args", "tokenizer_manager", "template_manager", "port_args", "scheduler_infos"),
        Mechanism.BEFORE,
        _HERE + "http_app.before_http_server",
        "our middleware; refuse to serve when a scheduler came up without us",
        ("main",),
        "plugins can add middleware",
    ),
)


def install() -> None:
    """Register every seam with SGLang; SGLang applies hooks when all plugins have run."""
    from sglang.srt.layers.sampler import register_sampler_backend  # noqa: PLC0415 -- SGLang is loaded by its plugin loader
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    kinds = {
        Mechanism.AROUND: HookType.AROUND,
        Mechanism.BEFORE: HookType.BEFORE,
        Mechanism.SUBCLASS: HookType.REPLACE,
    }
    check_signatures()
    for seam in SEAMS:
        if seam.mechanism in kinds:
            HookRegistry.register(seam.target, pkgutil.resolve_name(seam.ours), kinds[seam.mechanism])
        elif seam.mechanism is Mechanism.REGISTRY:
            for backend in ("pytorch", "flashinfer"):
                register_sampler_backend(backend, pkgutil.resolve_name(seam.ours))


def check_signatures() -> None:
    """Raise :class:`SeamError` unless every target exists with the parameters that the table says."""
    problems = problems_of(SEAMS)
    if problems:
        raise SeamError(_message(problems))


def problems_of(seams: tuple[Seam, ...]) -> list[str]:
    """What is wrong with the targets of ``seams`` in the installed SGLang."""
    return [problem for seam in seams if (problem := _signature_problem(seam)) is not None]


def verify(process: str) -> None:
    """Raise :class:`SeamError` unless every seam of ``process`` is alive."""
    problems = [
        f"{seam.target}: not installed" for seam in SEAMS if process in seam.processes and not _alive(seam)
    ]
    if problems:
        raise SeamError(_message(problems))


def _message(problems: list[str]) -> str:
    return (
        f"sgl_entropic is made for SGLang {SGLANG_VERSION}; {len(problems)} of its {len(SEAMS)} seams are dead: "
        + "; ".join(problems)
    )


def _signature_problem(seam: Seam) -> str | None:
    try:
        target = pkgutil.resolve_name(seam.target)
    except (ImportError, AttributeError) as error:
        return f"{seam.target}: {error}"
    function: Callable[..., Any] = target.__init__ if inspect.isclass(target) else target
    names = tuple(inspect.signature(inspect.unwrap(function)).parameters)
    if seam.mechanism is Mechanism.FIELDS:
        missing = [name for name in seam.parameters if name not in names]
        return f"{seam.target}: has no field {', '.join(missing)}" if missing else None
    wanted = seam.parameters[1:] if seam.parameters[:1] == ("cls",) else seam.parameters
    if names[: len(wanted)] != wanted:
        return f"{seam.target}: has the parameters {names}, expected {wanted} first"
    return None


def _alive(seam: Seam) -> bool:
    if not seam.ours:
        return True
    ours = pkgutil.resolve_name(seam.ours)
    if seam.mechanism is Mechanism.REGISTRY:
        from sglang.srt.layers.sampler import _CUSTOM_SAMPLER_FACTORIES  # noqa: PLC0415

        return ours in _CUSTOM_SAMPLER_FACTORIES.values()
    current = pkgutil.resolve_name(seam.target)
    if seam.mechanism is Mechanism.SUBCLASS:
        return current is ours
    if seam.mechanism is Mechanism.OVERRIDE:
        # The class is replaced in its own module, so the target now leads to our method, or our class derives from it.
        return (
            ours is current
            or pkgutil.resolve_name(seam.ours.rpartition(".")[0])
            .__mro__[1]
            .__dict__.get(seam.target.rpartition(".")[2])
            is current
        )
    return ours in _closure_values(current)


def _closure_values(function: Any) -> list[Any]:
    """What the wrappers that SGLang's hook registry has laid around ``function`` hold on to."""
    values: list[Any] = []
    while function is not None:
        function = getattr(function, "__func__", function)
        values += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        function = getattr(function, "__wrapped__", None)
    return values
