"""What a skill leaves open, names in vain or says of both sides: for whoever takes it in."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.skills import SkillDraft, SkillHead
from kb.errors import InvalidRequest, nearest
from kb.problem_terms import problem_terms

UNSCOPED = (
    "It names neither hardware, language nor signal (kb.hardware, kb.languages, kb.signals in its"
    " metadata), so it is shown for a request that has its operator or its words, and for no other."
)


ADVISING = (
    "It is a warning (kb.polarity: avoid), and its description says when to use it: let the"
    " description say what to avoid, and why."
)


def known_languages(connection: Connection) -> frozenset[str]:
    """The languages that something here names, and those that every model has seen."""
    # Loaded by those who name a language alone: the layout takes as long as the list of skills.
    from retrieval.compose.layout import load_layout

    return store.named_languages(connection) | load_layout().known_languages


def check_language(connection: Connection, language: str) -> None:
    """Raise InvalidRequest for a language that nothing here names."""
    known = known_languages(connection)
    if language not in known:
        raise InvalidRequest(
            f"no chip, document or shipped skill here names the language {language[:80]!r}",
            hint=f"{_meant(language, known)}Known: {', '.join(sorted(known))}.",
        )


def warnings_about(connection: Connection, skill: SkillDraft | SkillHead) -> tuple[str, ...]:
    """Sentences about what will not do what its author may think; empty for most."""
    warnings, scopes = [], skill.scopes
    if not (scopes.hardware or scopes.languages or scopes.signals):
        warnings.append(UNSCOPED)
    if skill.polarity == "avoid" and skill.description.lower().startswith("use when"):
        warnings.append(ADVISING)
    if skill.origin == "import":  # a run names the operators of its problems
        warnings += _unknown_ops(scopes.ops)
    if scopes.languages:
        known = known_languages(connection)
        warnings += [
            f"No chip, document or shipped skill here names the language {language!r}."
            f" {_meant(language, known)}".rstrip()
            for language in scopes.languages
            if language not in known
        ]
    return tuple(warnings)


def _unknown_ops(ops: Sequence[str]) -> list[str]:
    terms = problem_terms()
    known = frozenset({*terms.ops, *terms.families})
    return [
        f"No operator here is called {op!r}, so it holds for problems that name it so and for no"
        f" other. {_meant(op, known)}".rstrip()
        for op in ops
        if op not in known
    ]


def _meant(name: str, known: frozenset[str]) -> str:
    near = nearest(name, known)
    return f"Did you mean {' or '.join(near)}? " if near else ""
