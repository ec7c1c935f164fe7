"""The values that travel: frozen, light to import, and valid JSON under their public names."""

import dataclasses
import json
import math
import subprocess
import sys

import pytest

from sgl_entropic.signals import EntropySummary, TokenReading, json_number


def test_the_summary_has_the_public_json_names_and_six_decimals() -> None:
    summary = EntropySummary(
        tokens=3,
        tau_nats=1.23456789,
        net_drop_nats=-0.00000001,
        total_variation_nats=2.0,
        mean_entropy_nats=0.1 + 0.2,
        max_entropy_nats=1.0,
        last_entropy_nats=0.5,
        mean_surprisal_nats=None,
        invalid=1,
    )
    assert json.loads(json.dumps(summary.to_dict(), allow_nan=False)) == {
        "tokens": 3,
        "tau_nats": 1.234568,
        "net_drop_nats": 0.0,
        "total_variation_nats": 2.0,
        "mean_entropy_nats": 0.3,
        "max_entropy_nats": 1.0,
        "last_entropy_nats": 0.5,
        "mean_surprisal_nats": None,
        "invalid": 1,
    }


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_json_cannot_hold_becomes_null(value: float | None) -> None:
    assert json_number(value) is None


def test_a_vanishing_negative_number_is_written_without_its_sign() -> None:
    assert str(json_number(-1e-9)) == "0.0"


def test_a_reading_cannot_be_changed_after_it_was_taken() -> None:
    reading = TokenReading(1.0, 0.5, 2.0, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        reading.entropy_nats = 0.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "module",
    ["sgl_entropic.signals", "sgl_entropic.feedback.entropic_time", "sgl_entropic.entropy.from_logprobs"],
)
def test_the_plain_modules_load_neither_torch_nor_numpy_nor_sglang(module: str) -> None:
    code = (
        f"import sys, {module}; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'sglang')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
