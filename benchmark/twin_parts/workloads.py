"""What is asked of every server: clients, each with turns that follow one another.

All text comes from the seed, the round and the workload, so every server gets the same and no round finds an earlier
round's prompts in a prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from twin_parts.prompts import Prompts

# Which figure of a workload is compared.
OUTPUT, PREFILL, DECODE = "output_tokens_per_s", "input_tokens_per_s", "decode_tokens_per_s"

WARM_TOKENS = 8
CHAT_HEAD, CHAT_TAIL = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
CHAT_NEXT = "<|im_end|>\n"

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
SCHEMA = {
    "type": "object",
    "properties": {
        "first": {"type": "array", "items": {"enum": list(_DAYS)}, "minItems": 8, "maxItems": 8},
        "second": {"type": "array", "items": {"enum": list(_DAYS)}, "minItems": 8, "maxItems": 8},
    },
    "required": ["first", "second"],
    "additionalProperties": False,
}
# The same language for a server that takes a grammar only.
GRAMMAR = "\n".join(
    (
        r'root ::= "{" ws "\"first\"" ws ":" ws days ws "," ws "\"second\"" ws ":" ws days ws "}"',
        'days ::= "[" ws day (ws "," ws day){7} ws "]"',
        "day ::= " + " | ".join(rf'"\"{day}\""' for day in _DAYS),
        r"ws ::= [ \n]?",
    )
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.

    Attributes:
        text: what is asked; in a chat it follows the turns before and their answers.
        tokens: tokens of ``text``; ``None`` when it holds markup, of which servers may count some otherwise.
        output_tokens: answer length, exact unless ``structured``, where it is the most.
        structured: the answer must be a document of :data:`SCHEMA`.
    """

    text: str
    tokens: int | None
    output_tokens: int
    structured: bool = False


@dataclass(frozen=True, slots=True)
class Client:
    """Turns one after another, the first at ``start_s`` after the workload began.

    Attributes:
        turns: the requests.
        start_s: when the first is sent.
        continues: a turn's prompt begins with the turns before and their answers.
    """

    turns: tuple[Turn, ...]
    start_s: float = 0.0
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of the plain workloads."""

    input_tokens: int = 64
    output_tokens: int = 128
    context_output_tokens: int = 64


@dataclass(frozen=True, slots=True)
class Workload:
    """A named set of clients.

    Attributes:
        name: short and stable; claims are named after it.
        description: for people.
        figure: the figure that is compared, one of the constants above.
        build: clients of a round.
        structured: needs a server that can hold an answer to a schema.
        shape: clients, input and output tokens when all clients are alike and independent, else ``None``.
    """

    name: str
    description: str
    figure: str
    build: Callable[[Prompts, Sequence[object]], list[Client]]
    structured: bool = False
    shape: tuple[int, int, int] | None = None

    def clients(self, prompts: Prompts, seed: int, round_index: int) -> list[Client]:
        """The clients of a round."""
        return self.build(prompts, (seed, round_index, self.name))


def _plain(name: str, clients: int, input_tokens: int, output_tokens: int, figure: str = OUTPUT) -> Workload:
    def build(prompts: Prompts, key: Sequence[object]) -> list[Client]:
        return [
            Client((Turn(prompts.text(input_tokens, *key, index), input_tokens, output_tokens),))
            for index in range(clients)
        ]

    text = f"{clients} at once, {input_tokens} tokens in, {output_tokens} out"
    return Workload(name, text, figure, build, shape=(clients, input_tokens, output_tokens))


def _prefill(name: str, repeats: int, input_tokens: int) -> Workload:
    def build(prompts: Prompts, key: Sequence[object]) -> list[Client]:
        texts = [prompts.text(input_tokens, *key, index) for index in range(repeats)]
        return [Client(tuple(Turn(text, input_tokens, 1) for text in texts))]

    return Workload(name, f"{repeats} new prompts of {input_tokens} tokens in turn, 1 out", PREFILL, build)


def _shared_prefix(name: str, groups: int, members: int, prefix: int, own: int, output: int) -> Workload:
    def build(prompts: Prompts, key: Sequence[object]) -> list[Client]:
        clients = []
        for index in range(groups * members):
            common = prompts.text(prefix, *key, "group", index % groups)
            text = common + prompts.text(own, *key, index)
            clients.append(Client((Turn(text, prefix + own, output),)))
        return clients

    text = (
        f"{groups * members} at once in {groups} groups that share {prefix} tokens, {own} own, {output} out"
    )
    return Workload(name, text, OUTPUT, build)


def _chat(name: str, clients: int, turns: int, user_tokens: int, output: int) -> Workload:
    def build(prompts: Prompts, key: Sequence[object]) -> list[Client]:
        def turn(index: int, at: int) -> Turn:
            words = prompts.text(user_tokens, *key, index, at)
            return Turn(f"{CHAT_NEXT if at else ''}{CHAT_HEAD}{words}{CHAT_TAIL}", None, output)

        return [
            Client(tuple(turn(index, at) for at in range(turns)), continues=True) for index in range(clients)
        ]

    text = f"{clients} conversations of {turns} turns, {user_tokens} words in and {output} tokens out a turn"
    return Workload(name, text, OUTPUT, build)


def _structured(name: str, clients: int, most_tokens: int) -> Workload:
    def build(prompts: Prompts, key: Sequence[object]) -> list[Client]:
        def turn(index: int) -> Turn:
            words = prompts.text(32, *key, index)
            text = f"{CHAT_HEAD}Two lists of eight weekdays as JSON, for{words}.{CHAT_TAIL}"
            return Turn(text, None, most_tokens, structured=True)

        return [Client((turn(index),)) for index in range(clients)]

    return Workload(
        name,
        f"{clients} at once, a JSON document of a fixed schema, at most {most_tokens} tokens",
        OUTPUT,
        build,
        structured=True,
    )


CLAIMED = ("clients_1", "clients_8", "clients_16", "ctx2k_4_clients", "prefill2k")


def catalogue(sizes: Sizes) -> dict[str, Workload]:
    """Every workload but the trace, by name."""
    many = [
        *(_plain(f"clients_{n}", n, sizes.input_tokens, sizes.output_tokens) for n in (1, 8, 16)),
        _plain("ctx2k_4_clients", 4, 2000, sizes.context_output_tokens, DECODE),
        _prefill("prefill2k", 2, 2000),
        _plain("ctx4k_4_clients", 4, 4000, sizes.context_output_tokens, DECODE),
        _plain("ctx2k_8_clients", 8, 2000, sizes.context_output_tokens, DECODE),
        _plain("ctx6k_8_clients", 8, 6000, sizes.context_output_tokens, DECODE),
        _shared_prefix("shared_prefix", 2, 4, 512, 64, 64),
        _chat("chat", 4, 3, 48, 48),
        _structured("structured", 4, 160),
    ]
    return {one.name: one for one in many}


def shortened(clients: Sequence[Client]) -> list[Client]:
    """The same prompts with answers of a few tokens and without waiting, for warming up."""
    return [
        replace(
            client,
            start_s=0.0,
            turns=tuple(replace(t, output_tokens=min(t.output_tokens, WARM_TOKENS)) for t in client.turns),
        )
        for client in clients
    ]
