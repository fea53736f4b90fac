"""At most three skills for a request: those whose scope and preconditions fit, best evidence first.

Ranking is the parts of the score multiplied: scope match x evidence x freshness; the parts are
returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from kb.catalog.hardware import Fact
from kb.scope import ScopeFilter
from retrieval.answer import RetrieveRequest, SkillAnswer

MAX_SKILLS = 3


def choose_skills(
    connection: Connection,
    request: RetrieveRequest,
    signals: Sequence[str],
    scope: ScopeFilter,
    metrics: Mapping[str, float],
    facts: Mapping[str, Fact],
) -> tuple[SkillAnswer, ...]:
    return ()
