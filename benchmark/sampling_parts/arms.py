"""The variants of the controller that a command line names, and the requests and prompts that all arms share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODES = ("exact", "newton", "fixed")
ACTUATORS = ("temperature", "min_p")
CONSTANT, MIROSTAT = "constant", "mirostat"
_PROMPT_KEYS = ("prompt", "question", "text")


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant of the controller.

    Attributes:
        mode: how the target is followed.
        actuator: what is moved.
        gain: ``None`` leaves it to the server.
    """

    mode: str
    actuator: str = "temperature"
    gain: float | None = None

    @classmethod
    def of(cls, text: str) -> Variant:
        """From ``MODE[:ACTUATOR][@GAIN]``.

        Raises:
            ValueError: of another form.
        """
        head, at, gain = text.partition("@")
        mode, _, actuator = head.partition(":")
        actuator = actuator or "temperature"
        if mode not in MODES or actuator not in ACTUATORS:
            raise ValueError(
                f"{text!r} is no MODE[:ACTUATOR][@GAIN] of modes {', '.join(MODES)} and actuators {', '.join(ACTUATORS)}"
            )
        return cls(mode, actuator, float(gain) if at else None)

    @property
    def name(self) -> str:
        """As it stands in the result."""
        actuator = "" if self.actuator == "temperature" else f":{self.actuator}"
        return f"{self.mode}{actuator}" + ("" if self.gain is None else f"@{self.gain:g}")

    def asked(self, target_nats: float, bounds: dict[str, float]) -> dict[str, Any]:
        """What stands in ``custom_params.entropic``; ``bounds`` are of the temperature."""
        gain = {} if self.gain is None else {"sampling_gain": self.gain}
        return {
            "target_entropy_nats": target_nats,
            "sampling_mode": self.mode,
            "sampling_actuator": self.actuator,
            **gain,
            **(bounds if self.actuator == "temperature" else {}),
        }


def constant_of(variant: Variant) -> str:
    """Name of the arm with one temperature whose mean entropy is that of ``variant``."""
    return f"{CONSTANT} for {variant.name}"


def read_prompts(path: Path, count: int) -> list[str]:
    """The first ``count`` prompts: one a line, plain, or JSON with ``prompt``, ``question``, ``text`` or ``turns``.

    Raises:
        ValueError: fewer than ``count``, or a line of another form.
    """
    lines = [line for line in path.read_text().splitlines() if line.strip()][:count]
    if len(lines) < count:
        raise ValueError(f"{path} has {len(lines)} prompts, {count} are needed")
    return [_prompt(line, path) for line in lines] if path.suffix in {".json", ".jsonl"} else lines


def _prompt(line: str, path: Path) -> str:
    row = json.loads(line)
    found: str | None = next((row[key] for key in _PROMPT_KEYS if isinstance(row.get(key), str)), None)
    if found is None and isinstance(row.get("turns"), list):
        found = next((turn for turn in row["turns"][:1] if isinstance(turn, str)), None)
    if found is None:
        raise ValueError(f"{path}: a line has none of {', '.join(_PROMPT_KEYS)}, turns: {line[:80]}")
    return found


def token_ids(prompts: list[str], tokenizer: Any, *, chat: bool) -> list[list[int]]:
    """Ids of each prompt, in the model's chat form or as they stand."""
    if not chat:
        return [list(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        for prompt in prompts
    ]
    return [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]


def end_ids(model: Path, tokenizer: Any) -> list[int]:
    """Ids of the tokens that end an answer."""
    ends = {tokenizer.eos_token_id}
    generation = model / "generation_config.json"
    if generation.exists():
        named = json.loads(generation.read_text()).get("eos_token_id")
        ends |= set(named) if isinstance(named, list) else {named}
    return sorted(ends - {None})
