"""The table of per-request parameters and the value that a request's become."""

from __future__ import annotations

from dataclasses import dataclass

PARAMETERS_KEY = "entropic"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter that a request may carry; all of them are switches so far.

    Attributes:
        name: its key.
        accepted: type and range in words, for messages and documentation.
        top_level: whether it may also stand at the top level of a body.
        help: its effect.
    """

    name: str
    accepted: str
    top_level: bool
    help: str


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("return_entropy", "true or false", True, "entropy and surprisal of every generated token"),
    Parameter(
        "return_prompt_surprisal", "true or false", True, "surprisal and entropy of every prompt token"
    ),
    Parameter("return_summary", "true or false", False, "the summary; by default on /generate only"),
)
BY_NAME = {parameter.name: parameter for parameter in PARAMETERS}
TOP_LEVEL = tuple(parameter.name for parameter in PARAMETERS if parameter.top_level)


@dataclass(frozen=True, slots=True)
class RequestParams:
    """The parameters of one request; ``None`` leaves the choice to the route."""

    return_entropy: bool = False
    return_prompt_surprisal: bool = False
    return_summary: bool | None = None

    def merged(self, other: RequestParams) -> RequestParams:
        """Both askings together: what either asks for is given; ``other`` decides on the summary if it says anything."""
        return RequestParams(
            self.return_entropy or other.return_entropy,
            self.return_prompt_surprisal or other.return_prompt_surprisal,
            self.return_summary if other.return_summary is None else other.return_summary,
        )

    def to_custom_params(self) -> dict[str, bool]:
        """The object that belongs under ``custom_params.entropic``."""
        values = {name: getattr(self, name) for name in BY_NAME}
        return {name: value for name, value in values.items() if value is not None}
