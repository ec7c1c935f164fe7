"""The settings of scheduling."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sgl_entropic.config.section import Section


class SchedulingConfig(Section):
    """Entropy-aware scheduling: who waits, who decodes in this step, who gives up memory."""

    enabled: Annotated[
        bool,
        Field(
            description="Schedule by expected resolution of uncertainty for each millisecond of work; off leaves every "
            "decision to SGLang's --schedule-policy."
        ),
    ] = False
    hold: Annotated[
        bool,
        Field(
            description="Leave long answers out of a decode step where the short ones then end much sooner."
        ),
    ] = True
    pace: Annotated[
        bool,
        Field(
            description="Leave a free place free where those that run then end much sooner than the next one's "
            "prefill would let them: lower latencies, for later first tokens."
        ),
    ] = True
    retraction: Annotated[
        bool,
        Field(
            description="Choose who gives up its KV when the pool is full by what it costs to compute again."
        ),
    ] = True
    admission: Annotated[
        bool,
        Field(
            description="Admit by the predicted peak of KV memory in place of SGLang's ratio of most new tokens."
        ),
    ] = True
    compute_weight: Annotated[
        float,
        Field(ge=0, le=1000, description="Weight of predicted compute, in ms, in the cost of a request."),
    ] = 1.0
    memory_weight: Annotated[
        float,
        Field(
            ge=0,
            le=1000,
            description="Weight of memory, as its share of the pool times the ms held, in the cost of a request.",
        ),
    ] = 1.0
    latency_weight: Annotated[
        float,
        Field(
            ge=0,
            le=1000,
            description="Weight of the slack until a request has waited unusually long, in ms, in its cost.",
        ),
    ] = 0.25
    flow_weight: Annotated[
        float,
        Field(
            ge=0,
            le=4,
            description="Exponent of a request's entropy flow relative to the traffic's; 0 ignores it.",
        ),
    ] = 1.0
    ageing: Annotated[
        float,
        Field(
            ge=0,
            le=1000,
            description="A wait of w times the traffic's tail multiplies the score by 1 + ageing w^2.",
        ),
    ] = 1.5
    client_weight: Annotated[
        float,
        Field(
            ge=0,
            le=4,
            description="Exponent of the factor for clients that were served less; 0 ignores clients.",
        ),
    ] = 1.0
    max_wait_tokens: Annotated[
        int,
        Field(
            ge=1,
            le=1_000_000_000,
            description="Tokens the server may process before a waiting request goes first, in order of arrival.",
        ),
    ] = 65_536
    max_overtaken_tokens: Annotated[
        int,
        Field(
            ge=0,
            le=1_000_000_000,
            description="Tokens of work of later requests that may be started before a waiting one.",
        ),
    ] = 16_384
    tier_margin: Annotated[
        float,
        Field(
            ge=0,
            le=0.9,
            description="How much longer an answer of the gravity tier that most of a reduced batch is in may be and still "
            "run with it, as a share; 0 does not group by tier.",
        ),
    ] = 0.0
    max_held_steps: Annotated[
        int, Field(ge=1, le=100_000, description="Most decode steps in a row that a request is left out of.")
    ] = 64
