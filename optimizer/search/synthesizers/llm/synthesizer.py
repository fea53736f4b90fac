"""The synthesizer that asks language models for the next candidate."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from kb.errors import InvalidRequest
from optimizer.search.records import Cost, Proposal
from optimizer.search.synthesizers.base import Asking, Context, ProposalFailed
from optimizer.search.synthesizers.llm.asker import (
    Asker,
    CallAbandoned,
    LitellmAsker,
    RateLimit,
    Reply,
    load,
    total,
)
from optimizer.search.synthesizers.llm.conversation import (
    Conversation,
    DraftCheck,
    Replayed,
    Tools,
    Transcript,
    Transcripts,
    redacted,
)
from optimizer.search.synthesizers.llm.settings import LlmSettings, Redaction, drawn
from optimizer.search.synthesizers.llm.templates import VERSION, Fence

UNPRICED = "the price of this model is not in litellm's list: usd is unknown, not 0"


class LlmSynthesizer:
    """Proposes what language models answer. It is never exhausted, so it never returns None.

    `replay` is the id of a run whose stored transcripts answer instead of models; then no model is
    called and nothing is stored. Every other call leaves a transcript, also a call that fails. The
    cost of failed attempts is added to the next proposal, so that a budget counts it.

    Raises Unavailable without litellm, OSError where a transcript cannot be stored.
    """

    name = "llm"
    first_tries = 1

    def __init__(
        self,
        settings: LlmSettings,
        transcripts: Transcripts,
        *,
        tools: Tools | None = None,
        check: DraftCheck | None = None,
        replay: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        asking: Callable[[Asking], None] | None = None,
        cancelled: Callable[[str], bool] = lambda run: False,
    ) -> None:
        """`asking` is called every second while a model is being asked, and so is `cancelled` with
        the id of the run: where it is true, the answer is not waited for."""
        if settings.tools and tools is None:
            raise InvalidRequest(
                "tools are switched on and none are given", hint="Give Tools, or switch them off."
            )
        if replay is None:
            load()
        self._settings, self._transcripts, self._replay = settings, transcripts, replay
        self.context_tokens = settings.context_tokens
        self._tools = tools if settings.tools else None
        self._check = check
        self._sleep, self._clock = sleep, clock
        self._asking, self._cancelled = asking, cancelled
        self._limit = RateLimit(settings.requests_per_minute, clock, sleep)
        self._redact = Redaction(settings.api_key)
        self._replayed: Counter[int] = Counter()  # attempts by step
        self._owed = Cost()
        # One for all prompts, so that providers can reuse what they computed of equal beginnings.
        # Who wrote a document does not know it, and texts that hold it lose it.
        self._fence = Fence()

    def propose(self, context: Context) -> Proposal:
        """The candidate in the model's answer. Raises ProposalFailed, whatever a model or its
        provider does."""
        record, asker = self._opened(context)
        began = self._clock()
        try:
            # What was remarked of an answer then is in what was stored, whatever is known now.
            check = asker.remark if isinstance(asker, Replayed) else self._check
            talk = Conversation(
                context, self._settings, asker, record, self._tools, self._fence, check
            )
            answer = talk.answer()
        except ProposalFailed as problem:
            record.outcome = f"failed: {self._redact.error(str(problem))}"
            self._owed = self._spent(record, began)
            raise type(problem)(self._redact.error(str(problem))) from None
        else:
            record.outcome = "proposal"
            cost, self._owed = self._spent(record, began), Cost()
        finally:
            self._store(record)
        return Proposal(
            bundle=answer.bundle,
            synthesizer=self.name,
            parent=context.parent.number,
            plan=self._redact.known(answer.plan),
            claimed=answer.claimed,
            cost=cost,
            model=record.model,
            transcript=record.id,
            beside=talk.beside,
        )

    def _opened(self, context: Context) -> tuple[Transcript, Asker]:
        if self._replay is not None:
            return self._replayed_from(context, self._replay)
        run, step = context.run_id, context.step
        attempt = self._transcripts.attempts(run, step)
        model = drawn(self._settings.models, context.seed, step, attempt)
        chance = random.Random(f"{context.seed}:{step}:{attempt}:retry")
        asker = LitellmAsker(
            model,
            self._settings,
            self._limit,
            self._redact,
            chance,
            self._sleep,
            lambda seconds: self._waited(run, model, step, seconds),
        )
        return Transcript(run, step, attempt, model, VERSION), asker

    def _waited(self, run: str, model: str, step: int, seconds: float) -> None:
        if self._cancelled(run):
            raise CallAbandoned("the run was cancelled while a model was asked")
        if self._asking is not None:
            self._asking(Asking(model, step, seconds, self._settings.timeout_s))

    def _replayed_from(self, context: Context, run: str) -> tuple[Transcript, Asker]:
        step = context.step
        attempt = self._replayed[step]
        self._replayed[step] += 1
        stored = self._transcripts.read(run, step, attempt)
        if stored is None:
            raise ProposalFailed(f"no transcript {run}/{step}-{attempt} is stored to replay")
        return Transcript(run, step, attempt, stored.model, stored.prompt), Replayed(stored)

    def _spent(self, record: Transcript, began: float) -> Cost:
        replies = [heard for heard in record.heard if isinstance(heard, Reply)]
        return total(replies, self._clock() - began, self._owed)

    def _store(self, record: Transcript) -> None:
        if self._replay is not None:
            return
        if any(isinstance(heard, Reply) and heard.usd is None for heard in record.heard):
            record.note = UNPRICED
        self._transcripts.write(redacted(record, self._redact.known))
