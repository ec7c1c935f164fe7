"""What scheduling remembers of one request; it lives on SGLang's ``Req``, survives retraction and dies with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sgl_entropic.gravity.settings import Tier
from sgl_entropic.runtime.request_state import state_of
from sgl_entropic.scheduling.facts import RequestFacts

_ATTRIBUTE = "_sgl_entropic_scheduling"
_MORE_DECIDED: dict[Tier, int] = {"weak": 0, "medium": 1, "strong": 2}


@dataclass(slots=True)
class Notes:
    """Filled in by :class:`.seat.Seat`.

    Attributes:
        arrival: place in the order of arrival.
        priority: the user's, larger first.
        arrived_at_tokens: reading of the token clock at arrival.
        waits_since_tokens: the same when it was last queued.
        admitted: whether it has left the queue.
        started: whether it ever had.
        wait_tokens: tokens that the server processed before it was first admitted.
        held_steps: decode steps it has been left out of in a row.
        holds: decode steps it has been left out of.
        retractions: times it gave up its KV.
        recomputed_tokens: tokens computed again for that.
        finished: whether its end was seen.
        prefix_tokens: of the matched prefix whose surprisal is known.
        prefix_surprisal_nats: mean surprisal of that prefix; ``None`` while unknown.
        score: the policy's, term by term, when it was last admitted.
        score_traced: whether a trace record has carried it.
        waiting_facts: what the policy was last told of it while it waited.
    """

    arrival: int
    priority: int
    arrived_at_tokens: int
    waits_since_tokens: int
    admitted: bool = False
    started: bool = False
    wait_tokens: int = 0
    held_steps: int = 0
    holds: int = 0
    retractions: int = 0
    recomputed_tokens: int = 0
    finished: bool = False
    prefix_tokens: int = 0
    prefix_surprisal_nats: float | None = None
    score: dict[str, float] | None = None
    score_traced: bool = True
    waiting_facts: RequestFacts | None = None

    def report(self) -> dict[str, Any]:
        """For the response, once the request has ended."""
        return {
            "wait_tokens": self.wait_tokens,
            "held_steps": self.holds,
            "retractions": self.retractions,
            "recomputed_tokens": self.recomputed_tokens,
            "score": self.score,
        }


def notes_of(req: Any) -> Notes | None:
    """The notes of a ``Req``; ``None`` for one that was never queued, as the probes of a health check."""
    notes: Notes | None = getattr(req, _ATTRIBUTE, None)
    return notes


def report_of(req: Any) -> dict[str, Any] | None:
    """What scheduling did to ``req``; ``None`` where SGLang decides."""
    notes = notes_of(req)
    return None if notes is None or notes.score is None else notes.report()


def untraced_score(req: Any) -> dict[str, float] | None:
    """The score of ``req`` for the first trace record after its admission, and ``None`` from then on."""
    notes = notes_of(req)
    if notes is None or notes.score_traced:
        return None
    notes.score_traced = True
    return notes.score


def attach(req: Any, notes: Notes) -> None:
    """Give ``req`` its notes."""
    setattr(req, _ATTRIBUTE, notes)


def facts_of(req: Any, notes: Notes, *, running: bool, deferred: bool = False) -> RequestFacts:
    """What the policy may know of ``req``."""
    sampling = req.sampling_params
    state = state_of(req)
    time = state.time
    return RequestFacts(
        key=req.rid,
        arrival=notes.arrival,
        prompt_tokens=len(req.origin_input_ids),
        max_new_tokens=sampling.max_new_tokens,
        generated_tokens=len(req.output_ids),
        cached_tokens=req.prefix_len if running else req.num_matched_prefix_tokens,
        ignores_eos=bool(sampling.ignore_eos),
        priority=notes.priority,
        client=state.params.client_id,
        route="grammar" if req.grammar is not None else "",
        prefix_surprisal_nats=notes.prefix_surprisal_nats,
        flow_nats=time.tau_nats / (time.count - 1) if time.count > 1 else None,
        arrived_at_tokens=notes.arrived_at_tokens,
        waits_since_tokens=notes.waits_since_tokens,
        held_steps=notes.held_steps,
        deferred=deferred,
        tier=0 if state.narrative is None else _MORE_DECIDED[state.narrative.tier],
    )


def facts_of_waiting(req: Any, notes: Notes, *, deferred: bool) -> RequestFacts:
    """What the policy may know of ``req`` while it waits: made anew only when something of it changed."""
    known = notes.waiting_facts
    if (
        known is None
        or known.cached_tokens != req.num_matched_prefix_tokens
        or known.generated_tokens != len(req.output_ids)
        or known.deferred != deferred
        or known.waits_since_tokens != notes.waits_since_tokens
        or known.prefix_surprisal_nats != notes.prefix_surprisal_nats
        or known.max_new_tokens != req.sampling_params.max_new_tokens
    ):
        notes.waiting_facts = known = facts_of(req, notes, running=False, deferred=deferred)
    return known
