"""Settings that contradict each other, and a mean vector that is none, are refused with what is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgl_entropic.config import GravityConfig
from sgl_entropic.errors import ConfigError
from sgl_entropic.gravity.settings import MEDIUM_GRAVITY, SIGNALS, STRONG_GRAVITY, Signal
from sgl_entropic.runtime.gravity.settings import check_config, load_mean, settings_of


@pytest.mark.parametrize("signal", SIGNALS)
def test_each_signal_has_thresholds_of_its_own(signal: Signal) -> None:
    settings = settings_of(GravityConfig(signal=signal))
    assert (
        settings.strong.gravity == STRONG_GRAVITY[signal] > settings.medium.gravity == MEDIUM_GRAVITY[signal]
    )
    check_config(GravityConfig(signal=signal))


def test_a_strong_threshold_below_the_mediums_own_takes_it_along() -> None:
    settings = settings_of(GravityConfig(gravity_threshold=0.01))
    assert settings.medium.gravity == settings.strong.gravity == 0.01


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"top_k": 9}, r"gravity\.top_k = 9 is more than gravity\.window = 8"),
        (
            {"gravity_threshold": 0.3, "medium_gravity_threshold": 0.4},
            r"gravity\.medium_gravity_threshold = 0\.4 is above gravity\.gravity_threshold = 0\.3",
        ),
        (
            {"entropy_threshold_nats": 3.0},
            r"gravity\.medium_entropy_threshold_nats = 2\.0 is below gravity\.entropy_threshold_nats = 3\.0",
        ),
        (
            {"mean_path": "m.npy", "signal": "entropy"},
            r"gravity\.mean_path has no effect with gravity\.signal = entropy",
        ),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(GravityConfig(**values))


def test_a_mean_is_read_as_float32(tmp_path: Path) -> None:
    path = tmp_path / "mean.npy"
    np.save(path, np.arange(4, dtype=np.float64))
    mean = load_mean(str(path), 4)
    assert mean.dtype == np.float32
    assert mean.tolist() == [0.0, 1.0, 2.0, 3.0]
    check_config(GravityConfig(mean_path=str(path)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "cannot be read"),
        (b"not numpy", "cannot be read"),
        (np.zeros(0), r"has shape \(0,\)"),
        (np.zeros((2, 4)), r"has shape \(2, 4\)"),
        (np.zeros(4, np.int64), "and type int64"),
        (np.zeros(3), r"has 3 numbers; expected an \.npy file with 4 finite numbers"),
        (np.array([1.0, np.nan, 0.0, 0.0]), "not finite"),
        (np.array([1e300, 0.0, 0.0, 0.0]), "not finite"),
    ],
)
def test_a_mean_that_is_none_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "mean.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(ConfigError, match=message) as refusal:
        load_mean(str(path), 4)
    assert "gravity.mean_path = " in str(refusal.value)
    assert "expected an .npy file" in str(refusal.value)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "mean.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_mean(str(path))
