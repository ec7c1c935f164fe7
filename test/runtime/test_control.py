"""What a request and its server say of a target entropy becomes a control, or a refusal that names what is accepted."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sgl_entropic.config import SamplingConfig
from sgl_entropic.errors import ConfigError, RequestParameterError
from sgl_entropic.request_params import RequestParams
from sgl_entropic.runtime.control import Control, check_control, check_defaults, control_of

VOCABULARY = 49_152
OFF = SamplingConfig()
ON = SamplingConfig(
    target_nats=2.0, gain=0.05, mode="fixed", min_temperature_scale=0.25, max_temperature_scale=4.0
)


def test_nothing_asked_is_nothing_done() -> None:
    assert control_of(RequestParams(return_entropy=True), OFF) is None
    assert control_of(RequestParams(target_entropy_nats="off"), ON) is None


def test_the_request_s_word_goes_before_the_server_s() -> None:
    server = Control(2.0, "fixed", 0.05, "temperature", math.log(0.25), math.log(4.0))
    assert control_of(RequestParams(), ON) == server
    own = RequestParams(
        target_entropy_nats=0,
        sampling_mode="newton",
        sampling_gain=0.5,
        sampling_actuator="temperature",
        min_temperature_scale=0.5,
        max_temperature_scale=1.0,
    )
    assert control_of(own, ON) == Control(0.0, "newton", 0.5, "temperature", math.log(0.5), 0.0)
    # A grammar's certain tokens are not heated, but where the request says how far.
    cooled = control_of(RequestParams(), ON, grammar=True)
    assert cooled is not None
    assert cooled.high == 0.0
    assert cooled.low == control_of(RequestParams(), ON).low  # type: ignore[union-attr]
    asked = control_of(RequestParams(max_temperature_scale=1.5), ON, grammar=True)
    assert asked is not None
    assert asked.high == pytest.approx(math.log(1.5))
    assert control_of(RequestParams(target_entropy_nats="auto"), ON) == Control(
        None, "fixed", 0.05, "temperature", math.log(0.25), math.log(4.0)
    )


def check(
    params: RequestParams, defaults: SamplingConfig = OFF, *, prompts: bool = True, **sampling: Any
) -> None:
    check_control(params, defaults, sampling, VOCABULARY, prompts=prompts)


@pytest.mark.parametrize(
    ("params", "defaults", "sampling"),
    [
        (RequestParams(), OFF, {}),
        (RequestParams(), OFF, {"temperature": 0}),
        (RequestParams(), ON, {"temperature": 0}),
        (RequestParams(target_entropy_nats="off"), ON, {"temperature": 0}),
        (RequestParams(target_entropy_nats=2.0), OFF, {}),
        (RequestParams(target_entropy_nats=2.0), OFF, {"temperature": 0.7, "top_k": 40}),
        (RequestParams(target_entropy_nats=2.0, sampling_actuator="min_p"), OFF, {}),
        (RequestParams(sampling_gain=0.06), ON, {}),
    ],
)
def test_what_is_accepted(params: RequestParams, defaults: SamplingConfig, sampling: dict[str, Any]) -> None:
    assert check(params, defaults, **sampling) is None


@pytest.mark.parametrize(
    ("params", "sampling", "said"),
    [
        (RequestParams(sampling_gain=0.1), {}, "sampling_gain = 0.1 .*target_entropy_nats"),
        (
            RequestParams(target_entropy_nats="off", sampling_mode="exact"),
            {},
            "sampling_mode = 'exact' .*target",
        ),
        (RequestParams(target_entropy_nats=2.0), {"temperature": 0}, "contradicts temperature = 0.*above 0"),
        (RequestParams(target_entropy_nats="auto"), {"temperature": 1e-7}, "contradicts temperature"),
        (RequestParams(target_entropy_nats=2.0), {"top_k": 1}, "contradicts top_k = 1"),
        (RequestParams(target_entropy_nats=2.0), {"beam_width": 2}, "beam_width > 1.*accepted: beam_width 1"),
        (
            RequestParams(target_entropy_nats=2.0, sampling_gain=0.05),
            {},
            "sampling_gain = 0.05 has no effect.*newton",
        ),
        (
            RequestParams(target_entropy_nats=2.0, sampling_actuator="min_p", max_temperature_scale=3.0),
            {},
            "max_temperature_scale = 3.0 has no effect",
        ),
        (
            RequestParams(target_entropy_nats=2.0, sampling_actuator="min_p", sampling_mode="newton"),
            {},
            "sampling_mode = 'newton' contradicts sampling_actuator = 'min_p'.*exact",
        ),
        (
            RequestParams(target_entropy_nats=2.0, sampling_mode="fixed", sampling_gain=0.5),
            {},
            r"sampling_gain is 0.5.*14.08.*0 < gain < 0.06631",
        ),
        (
            RequestParams(target_entropy_nats=2.0, sampling_mode="newton", sampling_gain=2.0),
            {},
            "sampling_gain is 2.*contraction factor.*0 < gain < 2",
        ),
    ],
)
def test_contradictions_are_refused(params: RequestParams, sampling: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestParameterError, match=said):
        check(params, **sampling)


def test_auto_needs_the_entropies_of_prompts() -> None:
    with pytest.raises(RequestParameterError, match=r"'auto' needs .*telemetry"):
        check(RequestParams(target_entropy_nats="auto"), prompts=False)
    with pytest.raises(ConfigError, match=r"sampling\.target_nats = auto needs"):
        check_defaults(SamplingConfig(target_nats="auto"), VOCABULARY, prompts=False)
    check_defaults(SamplingConfig(target_nats="auto"), VOCABULARY, prompts=True)


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        (
            SamplingConfig(target_nats=1.0, mode="fixed", gain=0.07),
            r"sampling\.gain is 0.07.*1\.11.*0\.06631",
        ),
        (SamplingConfig(target_nats=1.0, mode="newton", gain=0.0), r"sampling\.gain is 0"),
        (
            SamplingConfig(target_nats=1.0, mode="newton", actuator="min_p"),
            r"sampling\.mode = 'newton' contradicts",
        ),
        # Without a target of the server's they would be met by the first request that has one.
        (SamplingConfig(mode="fixed", gain=0.07), r"sampling\.gain is 0.07.*1\.11.*0\.06631"),
        (SamplingConfig(mode="newton", actuator="min_p"), r"sampling\.mode = 'newton' contradicts"),
    ],
)
def test_a_server_that_cannot_work_is_refused(defaults: SamplingConfig, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_defaults(defaults, VOCABULARY, prompts=True)


def test_a_gain_that_nobody_uses_harms_nobody() -> None:
    for defaults in (SamplingConfig(gain=10.0), SamplingConfig(target_nats=1.0, mode="exact", gain=10.0)):
        assert check_defaults(defaults, VOCABULARY, prompts=False) is None
