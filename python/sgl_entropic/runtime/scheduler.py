"""SGLang's scheduler with the telemetry installed once its memory pools exist."""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.managers.scheduler_components.internal_state import SchedulerInternalStateController
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer

from sgl_entropic import __version__
from sgl_entropic.config import EntropicConfig
from sgl_entropic.runtime import steering as process_steering
from sgl_entropic.runtime import telemetry as process_telemetry
from sgl_entropic.runtime.active_config import active_config
from sgl_entropic.runtime.attention import planner as attention
from sgl_entropic.runtime.attention.cost import ReadCost
from sgl_entropic.runtime.attention.settings import check_config
from sgl_entropic.runtime.control import check_defaults
from sgl_entropic.runtime.eviction import settings as eviction
from sgl_entropic.runtime.gravity import start as gravity
from sgl_entropic.runtime.output_streamer import EntropicOutputStreamer
from sgl_entropic.runtime.recorder import Recorder
from sgl_entropic.runtime.refusals import steering_problems
from sgl_entropic.runtime.scheduling.mixin import ScheduledByEntropy
from sgl_entropic.runtime.seams import verify
from sgl_entropic.runtime.slots import SlotStore
from sgl_entropic.runtime.telemetry import Telemetry
from sgl_entropic.runtime.where_fast import compiled_kernels_asked_for, fast_path
from sgl_entropic.trace.counters import Counters
from sgl_entropic.trace.publisher import ZmqPublisher
from sgl_entropic.trace.sink import JsonlSink
from sgl_entropic.trace.worker import Worker

logger = logging.getLogger(__name__)

STATE_KEY = "sgl_entropic"


class EntropicInternalState(SchedulerInternalStateController):
    """Adds the counters to ``/server_info``."""

    def get_internal_state(self, recv_req: Any) -> Any:
        """SGLang's internal state with one more key."""
        output = super().get_internal_state(recv_req)
        output.internal_state[STATE_KEY] = self.scheduler.entropic_state()
        return output


class EntropicScheduler(ScheduledByEntropy):
    """The scheduler of one rank, measuring what it serves."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Build SGLang's scheduler, then install the telemetry: warm-up and graph capture stay untouched."""
        verify("scheduler")
        self.entropic_config: EntropicConfig = active_config()
        self.entropic_counters = Counters()
        self.entropic_telemetry: Telemetry | None = None
        prunes_on_gpu = self.entropic_config.attention.enabled and not compiled_kernels_asked_for()
        if prunes_on_gpu:
            from sgl_entropic.runtime.gpu import flashinfer_pruning  # noqa: PLC0415 -- nothing of it elsewhere

            flashinfer_pruning.install(self.entropic_config.attention.block_tokens)
        if self.entropic_config.eviction.enabled:
            eviction.install(self.entropic_config.eviction, self.entropic_counters)
        super().__init__(*args, **kwargs)
        if prunes_on_gpu:
            flashinfer_pruning.verify()
        config = self.entropic_config
        asked = config.telemetry.enabled or config.scheduling.enabled or config.eviction.enabled
        self.entropic_metrics = self._build_metrics() if asked and self.is_generation else None
        if self.entropic_seat is not None:
            self.entropic_seat.metrics = self.entropic_metrics
        if self.entropic_config.telemetry.enabled and self.is_generation:
            self._install_telemetry()
        if self.is_generation and not steering_problems(self.server_args):
            self._install_steering()

    def _install_telemetry(self) -> None:
        runner = self.tp_worker.model_runner
        metrics = self.entropic_metrics
        recorder = Recorder(self.entropic_counters, self._build_outlets(), metrics)
        store = None
        if self.entropic_config.telemetry.prompt_surprisal:
            # Slot 0 and the last page are SGLang's padding.
            slots = runner.token_to_kv_pool.size + 2 * max(runner.page_size, 1)
            rows = self.req_to_token_pool.req_to_token.shape[0]
            store = SlotStore.allocate(slots, rows, self.req_to_token_pool.req_to_token.device)
            logger.info("Slot store: %d KV slots, %.1f MiB.", slots, store.nbytes / 2**20)
            if metrics is not None:
                metrics.set_slot_bytes(store.nbytes)
        self.entropic_telemetry = Telemetry(
            config=self.entropic_config,
            store=store,
            req_to_token=self.req_to_token_pool.req_to_token,
            tree_cache=self.tree_cache,
            recorder=recorder,
            counters=self.entropic_counters,
        )
        fast = fast_path()
        if fast is not None:
            self.entropic_telemetry.recall = fast.statistics.recall
            self.entropic_telemetry.recall_columns = fast.statistics.recall_columns
        process_telemetry.install(self.entropic_telemetry)
        if self.entropic_config.gravity.enabled:
            gravity.install(self, self.entropic_config.gravity, recorder)
        if self.entropic_config.attention.enabled and store is not None:
            self._install_pruning(store)

    def _install_pruning(self, store: SlotStore) -> None:
        config = self.entropic_config.attention
        runner = self.tp_worker.model_runner
        check_config(
            config, runner.page_size, runner.sliding_window_size, compiled=compiled_kernels_asked_for()
        )
        attention.install(
            attention.Planner(
                config=config,
                surprisal_nats=store.surprisal_nats,
                req_to_token=self.req_to_token_pool.req_to_token,
                counters=self.entropic_counters,
                cost=ReadCost.of(self.model_config, runner.token_to_kv_pool, runner.page_size),
                on_gpu=not compiled_kernels_asked_for(),
            )
        )

    def _install_steering(self) -> None:
        """Ready for every request that asks, whatever the server's own setting."""
        telemetry, fast = self.entropic_telemetry, fast_path()
        store = None if telemetry is None else telemetry.store
        check_defaults(self.entropic_config.sampling, self.model_config.vocab_size, prompts=store is not None)
        table = self.req_to_token_pool.req_to_token
        solve: dict[str, Any] = {} if fast is None else {"solve": fast.solve_log_temperature}
        if table.device.type == "cuda":
            from sgl_entropic.runtime.gpu import sampling  # noqa: PLC0415 -- nothing of it on other platforms

            sampling.check(table.device, self.model_config.vocab_size)
            solve["solve"] = sampling.solve
        process_steering.install(
            process_steering.Steering.allocate(table, store, self.entropic_counters, **solve)
        )

    def _build_outlets(self) -> tuple[Worker, ...]:
        trace = self.entropic_config.trace
        if not self._is_first_rank():
            return ()
        outlets: list[Worker] = []
        if trace.path is not None:
            outlets.append(JsonlSink(trace.path, trace.queue_records, self.entropic_counters))
        if trace.publish is not None:
            outlets.append(ZmqPublisher(trace.publish, trace.queue_records, self.entropic_counters))
        return tuple(outlets)

    def _build_metrics(self) -> Any:
        if not self.metrics_collector_context.current_scheduler_metrics_enabled:
            return None
        # prometheus_client chooses its single- or multi-process mode when it is imported: not before SGLang has set up.
        from sgl_entropic.runtime.metrics import Metrics  # noqa: PLC0415

        return Metrics(self.metrics_collector.labels)

    def _is_first_rank(self) -> bool:
        from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415 -- set up by the scheduler's constructor

        parallel = get_parallel()
        return bool(parallel.tp_rank == 0 and parallel.pp_rank == 0)

    def get_output_streamer_class(self) -> type[SchedulerOutputStreamer]:
        """Ours when there is something to send."""
        if self.entropic_config.telemetry.enabled and self.is_generation:
            return EntropicOutputStreamer
        stock: type[SchedulerOutputStreamer] = super().get_output_streamer_class()
        return stock

    def init_internal_state(self) -> None:
        """As SGLang's, with our counters in the read-back."""
        super().init_internal_state()
        stock: SchedulerInternalStateController = self.internal_state  # type: ignore[has-type]
        self.internal_state = EntropicInternalState(scheduler=self, record_step_time=stock.record_step_time)

    def get_init_info(self) -> dict[str, Any]:
        """The handshake with the launching process, which refuses to serve without this key."""
        return {**super().get_init_info(), STATE_KEY: {"version": __version__}}

    def entropic_state(self) -> dict[str, Any]:
        """Version, configuration and counters, for ``/server_info``."""
        telemetry = self.entropic_telemetry
        fast, planner = fast_path(), attention.installed()
        return {
            "version": __version__,
            "config": self.entropic_config.model_dump(mode="json"),
            "counters": self.entropic_counters.snapshot(),
            "slot_store_bytes": 0 if telemetry is None or telemetry.store is None else telemetry.store.nbytes,
            "cpu": None if fast is None else fast.state(),
            "scheduling": self.entropic_scheduling_state(),
            "eviction": {"enabled": False}
            if self.entropic_evictor is None
            else self.entropic_evictor.state(),
            "attention": {"enabled": False} if planner is None else planner.state(),
            "gravity": gravity.state(self.entropic_config.gravity),
        }
