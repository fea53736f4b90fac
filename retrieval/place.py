"""The hardware of a request with all that its description says, kept for a revision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from kb.catalog.hardware import HardwareRegistry
from kb.catalog.kept import look_up
from kb.catalog.knowledge.documents import languages_of
from kb.hardware.spec import SignatureSpec
from kb.predicates import Value
from retrieval.diagnose.own_rules import OwnRules, rules_of
from retrieval.layout import Layout
from retrieval.request import RetrieveRequest
from retrieval.request_scope import RequestScope, scope_of, with_own_toolchain

MOST_PLACES = 500  # that are kept, of 50 KB


@dataclass(frozen=True)
class Place:
    """`scope` is as the request names it, `own` with the toolchain of the chip's own language,
    which then is `language`; facts, error texts and rules are those of the chip with its families.
    """

    scope: RequestScope
    own: RequestScope
    language: str | None
    facts: Mapping[str, Value]
    signatures: tuple[SignatureSpec, ...]
    rules: OwnRules


def place_of(
    connection: Connection, request: RetrieveRequest, chips: HardwareRegistry, layout: Layout
) -> Place:
    """The place of a request; `chips` are those that its caller may see. Raises UnknownHardware."""
    run_time = bool(request.given_signals or request.log or request.metrics)
    access = request.access_scope
    key: object = (request.hardware, request.language, request.categories, access, run_time)

    def documented(hardware_id: str) -> tuple[str, ...]:
        return languages_of(connection, hardware_id, access)

    def read(_: Sequence[object]) -> dict[object, Place]:
        specs = chips.all()
        scope = scope_of(request, chips, documented)
        own, named = with_own_toolchain(request, scope, chips, layout)
        place = Place(
            scope,
            own,
            named.language,
            {key: fact.value for key, fact in scope.facts.items()},
            tuple(s for place in scope.lineage for s in specs[place].signatures),
            rules_of(specs, scope.lineage),
        )
        return {key: place}

    return look_up(connection, "places", [key], read, most=MOST_PLACES, skills=False)[key]
