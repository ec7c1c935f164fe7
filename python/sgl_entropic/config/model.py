"""The one validated model of all settings. Units are in the names; a value is never converted, only accepted or refused.

The one liberty: a choice may be written in any case, and is kept as it is declared.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationError

from sgl_entropic.config.endpoint import checked_endpoint
from sgl_entropic.config.gravity import GravityConfig
from sgl_entropic.config.refusals import refusal
from sgl_entropic.config.scheduling import SchedulingConfig
from sgl_entropic.config.section import Section, checked_path


def _checked_publish(endpoint: str | None) -> str | None:
    return None if endpoint is None else checked_endpoint(endpoint)


class TelemetryConfig(Section):
    """What is measured."""

    enabled: Annotated[bool, Field(description="Measure every sampling step.")] = True
    prompt_surprisal: Annotated[
        bool,
        Field(
            description="Score a prompt's new tokens in the prefill and keep readings beside the KV slots."
        ),
    ] = True
    prompt_chunk_rows: Annotated[
        int, Field(ge=16, le=8192, description="Rows that pass the LM head at once while a prompt is scored.")
    ] = 256


class TraceConfig(Section):
    """Where step records go; nowhere by default."""

    path: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=4096,
            description="Append step records to this file as JSON lines.",
            json_schema_extra={"accepted": "a file in an existing, writable directory", "metavar": "FILE"},
        ),
        AfterValidator(checked_path),
    ] = None
    publish: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=4096,
            description="Publish step records on this ZeroMQ PUB endpoint, to whoever can reach it.",
            json_schema_extra={
                "accepted": "tcp://host:port with a port from 1 to 65535, or ipc://path",
                "metavar": "ENDPOINT",
            },
        ),
        AfterValidator(_checked_publish),
    ] = None
    queue_records: Annotated[
        int,
        Field(
            ge=16, le=1_000_000, description="Step records that may wait before they are dropped and counted."
        ),
    ] = 4096


class SamplingConfig(Section):
    """Entropy-stabilised sampling: what a request gets that does not say otherwise."""

    target_nats: Annotated[
        Annotated[float, Field(ge=0, le=20)] | Literal["auto"] | None,
        Field(
            description="Entropy to sample at; auto is the mean entropy of the request's own prompt, none samples at the "
            "request's own temperature."
        ),
    ] = None
    mode: Annotated[
        Literal["exact", "newton", "fixed"],
        Field(
            description="How the target is followed: exact finds the temperature within the step, newton and fixed move it "
            "from step to step."
        ),
    ] = "exact"
    gain: Annotated[
        float,
        Field(
            ge=0,
            le=10,
            description="Step of newton (share of the way) and fixed (change of ln T for each nat of error).",
        ),
    ] = 0.05
    actuator: Annotated[
        Literal["temperature", "min_p"],
        Field(
            description="What is moved: the temperature, or the min-p threshold, which can only lower the entropy."
        ),
    ] = "temperature"
    min_temperature_scale: Annotated[
        float, Field(ge=0.05, le=1, description="Least temperature, as a share of the request's own.")
    ] = 0.7
    max_temperature_scale: Annotated[
        float, Field(ge=1, le=20, description="Largest temperature, as a multiple of the request's own.")
    ] = 1.3


class AttentionConfig(Section):
    """Attention pruning: which blocks of its context a decode step reads."""

    enabled: Annotated[
        bool,
        Field(
            description="Leave blocks of the KV cache out of what a decode step reads; requests may differ from the settings "
            "below, and short contexts are read whole."
        ),
    ] = False
    policy: Annotated[
        Literal["surprisal", "streaming", "attention", "quest", "mixed"] | None,
        Field(
            description="How the blocks to keep are chosen: by the surprisal of their tokens, recency alone, the attention they "
            "received, the bound of what the query can pay them, or (mixed) what it is likely to pay them and their surprisal; "
            "none is mixed on the CPU platform and surprisal elsewhere."
        ),
    ] = None
    min_keep_ratio: Annotated[
        float | None,
        Field(
            ge=0.01,
            le=1,
            description="Share of the context that is read when nothing is uncertain; no step reads less; none is the policy's "
            "own: 0.15 for mixed, else 0.25.",
        ),
    ] = None
    max_keep_ratio: Annotated[
        float,
        Field(
            ge=0.01,
            le=1,
            description="Share that is read at most, unless the entropy spikes; equal to the least one, the share is fixed.",
        ),
    ] = 1.0
    reference_entropy_nats: Annotated[
        float | None,
        Field(
            ge=0.1,
            le=20,
            description="Entropy at which everything is read; none is that of the vocabulary, ln V.",
        ),
    ] = None
    floor_entropy_nats: Annotated[
        float,
        Field(
            ge=0,
            le=20,
            description="Lower entropies count as this much, against models that are surer than they should be.",
        ),
    ] = 0.5
    block_tokens: Annotated[
        int, Field(ge=1, le=256, description="Tokens of a block; a multiple of SGLang's --page-size.")
    ] = 16
    sink_tokens: Annotated[
        int, Field(ge=1, le=65_536, description="First tokens of a context, which are always read.")
    ] = 16
    recent_tokens: Annotated[
        int, Field(ge=1, le=65_536, description="Last tokens of a context, which are always read.")
    ] = 64
    recent_share: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            description="Share of what is read that goes to the most recent blocks; none is the policy's own.",
        ),
    ] = None
    min_context_tokens: Annotated[
        int, Field(ge=1, le=10_000_000, description="Contexts shorter than this are read whole.")
    ] = 512
    score_interval_steps: Annotated[
        int, Field(ge=1, le=4096, description="Decode steps after which the blocks are chosen anew.")
    ] = 16
    spike_entropy_nats: Annotated[
        float | None,
        Field(
            ge=0.01,
            le=20,
            description="An entropy above this brings the whole context back at once; none is 0.6 ln V.",
        ),
    ] = None
    share_generated_kv: Annotated[
        bool,
        Field(
            description="Let other requests reuse keys and values that were computed while blocks were left out; they differ "
            "from exact ones."
        ),
    ] = False


class EvictionConfig(Section):
    """Eviction of the prefix cache by when prefixes return."""

    enabled: Annotated[
        bool,
        Field(
            description="Evict cached prefixes by when such ones were asked for again; off leaves it to SGLang."
        ),
    ] = False
    surprisal_weight: Annotated[
        float,
        Field(
            ge=0,
            le=4,
            description="Exponent of a prefix's surprisal relative to the others', when all requests are in strong gravity; "
            "0 ignores it.",
        ),
    ] = 0.0
    work_weight: Annotated[
        float,
        Field(
            ge=0,
            le=4,
            description="Exponent of the prefill work that a cached token saves; 0 counts tokens as equal.",
        ),
    ] = 0.0
    work_per_context: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Work of a token behind one token of context, in units of the work of a token without.",
        ),
    ] = 1e-5
    lookahead_requests: Annotated[
        int,
        Field(
            ge=0,
            le=1024,
            description="First waiting requests whose cached prefixes are evicted last.",
        ),
    ] = 64
    ghost_ratio: Annotated[
        float,
        Field(
            ge=0,
            le=64,
            description="Evicted tokens that are remembered, as a multiple of the pool's.",
        ),
    ] = 4.0


class CpuConfig(Section):
    """The portable CPU platform; without effect on another."""

    threads: Annotated[
        int | None,
        Field(ge=1, le=1024, description="Threads for tensor work on the CPU; none means all usable CPUs."),
    ] = None
    kv_pool_mib: Annotated[
        int | None,
        Field(ge=64, le=1_048_576, description="Memory of the KV pool in MiB; none means by free memory."),
    ] = None
    weights: Annotated[
        Literal["float32", "int8"],
        Field(
            description="Arithmetic of the matrix products: float32 keeps every number of the checkpoint, int8 computes "
            "with 8-bit integers.",
            json_schema_extra={"flag": "--entropic-weights"},
        ),
    ] = "int8"
    fast_path: Annotated[
        bool, Field(description="Compiled kernels; off runs SGLang's own PyTorch operations, bit for bit.")
    ] = True
    fork: Annotated[
        bool,
        Field(
            description="Start SGLang's processes as copies of the first one, which saves memory and time; off spawns "
            "them as SGLang does elsewhere."
        ),
    ] = True


class EntropicConfig(Section):
    """Every setting of the extension."""

    telemetry: TelemetryConfig = TelemetryConfig()
    trace: TraceConfig = TraceConfig()
    sampling: SamplingConfig = SamplingConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    attention: AttentionConfig = AttentionConfig()
    gravity: GravityConfig = GravityConfig()
    eviction: EvictionConfig = EvictionConfig()
    cpu: CpuConfig = CpuConfig()

    def to_json(self) -> str:
        """The configuration as JSON, for other processes."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of :meth:`to_json`; the file system is not looked at.

        Raises:
            ConfigError: ``text`` is not the JSON of a configuration.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise refusal(cls, error, "configuration JSON") from None
