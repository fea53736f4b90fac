"""What the scopes of a skill leave open or name in vain: said to whoever imports or approves it."""

from __future__ import annotations

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.skills import SkillScopes
from kb.errors import InvalidRequest, nearest

UNSCOPED = (
    "It names neither hardware, language nor signal (kb.hardware, kb.languages, kb.signals in its"
    " metadata), so it is shown for a request that has its operator or its words, and for no other."
)


def known_languages(connection: Connection) -> frozenset[str]:
    """The languages that something here names, and those that every model has seen."""
    # Loaded by those who name a language alone: the layout takes as long as the list of skills.
    from retrieval.layout import load_layout

    return store.named_languages(connection) | load_layout().known_languages


def check_language(connection: Connection, language: str) -> None:
    """Raise InvalidRequest for a language that nothing here names."""
    known = known_languages(connection)
    if language not in known:
        raise InvalidRequest(
            f"no chip, document or shipped skill here names the language {language[:80]!r}",
            hint=f"{_meant(language, known)}Known: {', '.join(sorted(known))}.",
        )


def warnings_about(connection: Connection, scopes: SkillScopes) -> tuple[str, ...]:
    """Sentences about scopes that will not do what their author may think; empty for most."""
    warnings = []
    if not (scopes.hardware or scopes.languages or scopes.signals):
        warnings.append(UNSCOPED)
    if scopes.languages:
        known = known_languages(connection)
        warnings += [
            f"No chip, document or shipped skill here names the language {language!r}."
            f" {_meant(language, known)}".rstrip()
            for language in scopes.languages
            if language not in known
        ]
    return tuple(warnings)


def _meant(language: str, known: frozenset[str]) -> str:
    near = nearest(language, known)
    return f"Did you mean {' or '.join(near)}? " if near else ""
