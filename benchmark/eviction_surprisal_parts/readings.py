"""Mean surprisal of each block of each prompt, behind its real prefix, by the compiled decoder in float32."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eviction_surprisal_parts.texts import Ids

if TYPE_CHECKING:
    from attention_quality_parts.model import Floats, Model

BLOCK_TOKENS = 16
CALL_TOKENS = 512
"""New tokens of one call of the decoder."""


@dataclass(slots=True)
class Readings:
    """What was measured.

    Attributes:
        answers: to the first turns of the chats, by the model's own greedy choice.
        surprisal_nats: mean of each block's tokens, by the name of the block.
    """

    answers: list[list[int]] = field(default_factory=list)
    surprisal_nats: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None) -> Readings:
        """What ``path`` holds; nothing where there is no such file."""
        return cls(**json.loads(path.read_text())) if path is not None and path.exists() else cls()

    def write(self, path: Path | None) -> None:
        """For another run with the same texts and draws."""
        if path is not None:
            path.write_text(
                json.dumps({"answers": self.answers, "surprisal_nats": self.surprisal_nats}) + "\n"
            )


def names_of(ids: Ids) -> list[str]:
    """Of each block of ``ids``: equal where all tokens up to its end are."""
    digest = hashlib.blake2b(digest_size=8)
    names = []
    for at in range(0, len(ids), BLOCK_TOKENS):
        digest.update(np.array(ids[at : at + BLOCK_TOKENS], dtype=np.int32).tobytes())
        names.append(digest.hexdigest())
    return names


def measure(
    model: Model,
    sequences: Sequence[Ids],
    known: dict[str, float],
    step: Callable[[int, int], None] = lambda *_: None,
) -> int:
    """Add the blocks of ``sequences`` to ``known``.

    What two sequences begin with alike is computed once: they are taken in order of their tokens, and those of the one before lie
    in the cache still.

    Args:
        model: with as many slots as the longest sequence has tokens.
        sequences: whole requests.
        known: mean surprisal in nats by the name of a block; gains those that it lacks. The first token of a text has none.
        step: hears of sequences done, and of how many.

    Returns:
        The tokens that were computed.
    """
    computed = 0
    before: Ids = ()
    nats: Floats = np.full(1, np.nan, np.float32)
    wanted = sorted({ids for ids in sequences if any(name not in known for name in names_of(ids))})
    for number, ids in enumerate(wanted):
        common = next(
            (at for at, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b),
            min(len(before), len(ids)),
        )
        # The state of the last common token says how likely the next one was; a prefix of the last has no next one.
        begin = max(0, min(common, len(ids) - 1) - 1)
        nats = np.concatenate((nats[: begin + 1], _surprisals(model, np.array(ids), begin)))
        computed += len(ids) - begin
        for place, name in enumerate(names_of(ids)):
            block = nats[place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS]
            if np.isfinite(block).any():
                known.setdefault(name, float(np.nanmean(block.astype(np.float64))))
        before = ids
        step(number + 1, len(wanted))
    return computed


def _surprisals(model: Model, ids: np.ndarray, begin: int) -> Floats:
    """Of the tokens behind ``begin``."""
    slots, hidden = np.arange(len(ids)), []
    for at in range(begin, len(ids), CALL_TOKENS):
        end = min(at + CALL_TOKENS, len(ids))
        hidden.append(model.forward(ids[at:end], [end], [slots], [end - at]))
    import torch  # noqa: PLC0415 -- the processes that only replay do without

    return model.surprisal_nats(torch.cat(hidden), ids[begin:])[1:]


def greedy(model: Model, prompts: Sequence[Ids], tokens: int, stop: int) -> list[list[int]]:
    """What the model answers to each prompt, all in one batch; ``stop`` ends an answer and is no part of it.

    The model needs ``len(prompts) * (longest prompt + tokens)`` slots.
    """
    room = max(map(len, prompts)) + tokens
    slots = [np.arange(at * room, (at + 1) * room) for at in range(len(prompts))]
    lengths = [len(prompt) for prompt in prompts]
    hidden = model.forward(np.concatenate([np.array(prompt) for prompt in prompts]), lengths, slots, lengths)
    last = hidden[np.cumsum(lengths) - 1]
    made: list[list[int]] = []
    for step in range(tokens):
        made.append(model.logits(last.contiguous()).argmax(-1).tolist())
        now = [length + step + 1 for length in lengths]
        last = model.forward(np.array(made[-1]), now, slots, [1] * len(prompts))
    return [
        answer[: answer.index(stop)] if stop in answer else answer
        for answer in map(list, zip(*made, strict=True))
    ]
