"""The settings of narrative gravity."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sgl_entropic.config.section import Section, checked_path


class GravityConfig(Section):
    """Narrative gravity: how much the text of a request is already on its way."""

    enabled: Annotated[
        bool, Field(description="Tell of every token how decided the text is, and in which tier its request.")
    ] = False
    signal: Annotated[
        Literal["hidden", "entropy", "surprisal"],
        Field(
            description="What gravity is taken from: hidden states, or the inverse perplexity that the last tokens' entropy or "
            "surprisal amounts to."
        ),
    ] = "hidden"
    window: Annotated[
        int,
        Field(
            ge=1, le=64, description="Last tokens that a token is compared with; before that gravity is 0."
        ),
    ] = 8
    top_k: Annotated[
        int,
        Field(ge=1, le=64, description="Most similar ones of these whose mean counts; hidden states only."),
    ] = 5
    centre_decay: Annotated[
        float,
        Field(
            ge=0, le=0.999, description="Share of the running centre of a text that is kept at every token."
        ),
    ] = 0.9
    mean_path: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=4096,
            description="Mean hidden state, subtracted from all; none is learnt by the server.",
            json_schema_extra={
                "accepted": "an .npy file with one number for each hidden one",
                "metavar": "FILE",
            },
        ),
        AfterValidator(checked_path),
    ] = None
    mean_rows: Annotated[
        int,
        Field(
            ge=0,
            le=10_000_000,
            description="First hidden states that the mean is learnt from, while gravity is 0; 0 subtracts no mean.",
        ),
    ] = 1024
    gravity_threshold: Annotated[
        float | None,
        Field(
            ge=-1, le=1, description="Gravity that the strong tier begins above; none is the signal's own."
        ),
    ] = None
    medium_gravity_threshold: Annotated[
        float | None, Field(ge=-1, le=1, description="Likewise the medium tier.")
    ] = None
    entropy_threshold_nats: Annotated[
        float, Field(ge=0, le=20, description="Entropy that the strong tier begins below.")
    ] = 1.0
    medium_entropy_threshold_nats: Annotated[
        float, Field(ge=0, le=20, description="Likewise the medium tier.")
    ] = 2.0
    gravity_margin: Annotated[
        float,
        Field(ge=0, le=2, description="How far gravity falls below a tier's threshold before it is left."),
    ] = 0.1
    entropy_margin_nats: Annotated[
        float,
        Field(ge=0, le=20, description="How far entropy rises above a tier's threshold before it is left."),
    ] = 1.0
    dwell_tokens: Annotated[
        int,
        Field(ge=1, le=4096, description="Tokens after a change of tier before a stronger one is entered."),
    ] = 4
    opening_tokens: Annotated[
        int, Field(ge=0, le=1_000_000, description="First tokens of an answer, which are in the weak tier.")
    ] = 16
    free_energy_temperature: Annotated[
        float, Field(ge=0, le=100, description="Weight of the entropy in the free energy.")
    ] = 1.0
