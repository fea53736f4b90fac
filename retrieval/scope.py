"""The subject of a request and its visibility: the chip with its lineage and facts, the languages
of its kernels, and the filter that every store query takes.

Fails closed: an unknown hardware is an error, and a run-time condition without a hardware matches
only documents about no chip in particular, unless its log is by the tool of one vendor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kb.catalog.facts import Fact
from kb.hardware.lineage import chips_named
from kb.hardware.spec import HardwareSpec, SignatureSpec, ToolchainSpec
from kb.predicates import Value
from kb.scope import ANY, CATEGORIES, ScopeFilter
from retrieval.diagnose.given_profile import KnownHardware
from retrieval.diagnose.rules import OwnRules, rules_of
from retrieval.diagnose.signatures import vendor_of_log
from retrieval.layout import Layout
from retrieval.request import RetrieveRequest
from retrieval.search.language_words import is_alone
from retrieval.snapshot.snapshot import Snapshot

RUN_EVERYWHERE = ("torch",)  # languages that run on any chip with a PyTorch backend

Documented = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True)
class RequestScope:
    """The hardware part of a request, resolved. `toolchain` is that of the language, if models do
    not know the language. `chip_languages` are all languages of the chip, independent of the
    request's."""

    hardware: HardwareSpec | None
    lineage: tuple[str, ...]
    filter: ScopeFilter
    facts: Mapping[str, Fact]
    toolchain: ToolchainSpec | None = None
    chip_languages: tuple[str, ...] = ()

    @property
    def named(self) -> dict[str, object] | None:
        """The field `hardware` of an answer."""
        if self.hardware is None:
            return None
        name = self.hardware.name
        return {"id": self.hardware.id, "name": name, "lineage": list(self.lineage)}

    @property
    def runnable(self) -> tuple[str, ...]:
        """Languages of kernels that run on the chip; empty if unknown."""
        languages = self.filter.languages or ()
        return tuple(name for name in languages if name not in RUN_EVERYWHERE)


def scope_of(
    request: RetrieveRequest, registry: KnownHardware, documented: Documented
) -> RequestScope:
    """Resolve the scope of a request; `documented` maps a hardware to the languages that its own
    documents name. Raises UnknownHardware."""
    categories = request.categories or CATEGORIES
    if request.hardware is not None:
        spec = registry.get(request.hardware)
        lineage = registry.lineage(spec.id)
        chip_languages = _languages(lineage, registry.all(), documented)
        languages = chip_languages if request.language is None else (request.language,)
        scope = ScopeFilter((*lineage, ANY), categories, languages, request.access_scope)
        facts = registry.effective_facts(spec.id)
        own = tuple(name for name in chip_languages if name not in RUN_EVERYWHERE)
        return RequestScope(spec, lineage, scope, facts, chip_languages=own)
    # A run-time condition must not match documents about other chips; a question may be about any
    # chip.
    run_time = request.given_signals or request.log or request.metrics
    admitted_any = (ANY,) if run_time else None
    named = (request.language,) if request.language else None
    return RequestScope(
        None, (), ScopeFilter(admitted_any, categories, named, request.access_scope), {}
    )


def _languages(
    lineage: Sequence[str], specs: Mapping[str, HardwareSpec], documented: Documented
) -> tuple[str, ...]:
    """Languages of kernels for a chip: those that its description, its toolchains or its own
    documents name. Text, moves and skills of other languages do not apply to it."""
    declared = next((specs[h].languages for h in lineage if specs[h].languages), ())
    chains = (name for h in lineage for name in specs[h].toolchains)
    own = documented(lineage[0])
    return tuple(dict.fromkeys((*declared, *chains, *own, *RUN_EVERYWHERE)))


def own_chains(
    lineage: Sequence[str], specs: Mapping[str, HardwareSpec], documented: Sequence[str] = ()
) -> dict[str, ToolchainSpec]:
    """The toolchain of each language of a chip. It is empty for a language that a chip with no
    common language only names: its manuals apply however a kernel is compiled."""
    chains: dict[str, ToolchainSpec] = {}
    known = [specs[place] for place in lineage if place in specs]
    for spec in reversed(known):  # the chip's own description takes precedence
        chains |= spec.toolchains
    declared = next((spec.languages for spec in known if spec.languages), ())
    named = tuple(dict.fromkeys((*declared, *documented)))
    if is_alone(named):
        chains = dict.fromkeys(named, ToolchainSpec()) | chains
    return chains


def own_toolchain(
    language: str | None,
    lineage: Sequence[str],
    specs: Mapping[str, HardwareSpec],
    layout: Layout,
    documented: Sequence[str] = (),
) -> tuple[str, ToolchainSpec] | None:
    """The language and toolchain of a chip that models do not know: the named language, else the
    chip's only such language. None without one. `documented` are languages that its documents name.
    """
    own = {
        name: chain
        for name, chain in own_chains(lineage, specs, documented).items()
        if name not in layout.known_languages and not chain.builtin
    }
    if language is None and len(own) == 1:
        return next(iter(own.items()))
    return (language, own[language]) if language in own else None


def with_own_toolchain(
    request: RetrieveRequest, scope: RequestScope, registry: KnownHardware, layout: Layout
) -> tuple[RequestScope, RetrieveRequest]:
    """Add the toolchain of the chip's own language, empty if none is declared. A chip with one such
    language implies it if the request names no language."""
    if scope.hardware is None:
        return scope, request
    own = own_toolchain(
        request.language, scope.lineage, registry.all(), layout, scope.chip_languages
    )
    if own is None:
        return scope, request
    language, toolchain = own
    return replace(scope, toolchain=toolchain), replace(request, language=language)


@dataclass(frozen=True)
class ResolvedHardware:
    """The resolved hardware of a request. `scope` follows the request, `own` adds the toolchain of
    the chip's own language, which then is `language`; facts, error texts and rules are those of the
    chip and its families."""

    scope: RequestScope
    own: RequestScope
    language: str | None
    facts: Mapping[str, Value]
    signatures: tuple[SignatureSpec, ...]
    rules: OwnRules


def with_vendor(request: RetrieveRequest, chips: KnownHardware) -> tuple[RetrieveRequest, str]:
    """A request without hardware, with the registered family of the tool that wrote its log, and a
    hint that names both, or the chip that the log names; other requests and ""."""
    if request.hardware is not None or not request.log:
        return request, ""
    found = ", ".join(sorted(chips_named(request.log, chips.all())))
    chip_hint = f"The log names {found}. Add `hardware` for the chip's own manuals." * bool(found)
    named = vendor_of_log(request.log)
    if named is not None and not named[0]:
        open_hint = (
            f"The log is by {named[1]}, which the answer covers for chips of any vendor. Add"
            " `hardware` (GET /hardware lists the ids) for the chip's own manuals."
        )
        return request, chip_hint or open_hint
    if named is None or named[0] not in chips.all():
        return request, chip_hint
    vendor, tool = named
    if chip_hint:
        return replace(request, hardware=vendor), chip_hint
    members = sorted(i for i in chips.all() if vendor in chips.lineage(i)[1:])
    some = ", ".join(members[:6]) + (", ..." if len(members) > 6 else "")
    hint = (
        f"The log is by {tool}, so the answer is about {vendor} in general. Add `hardware` ({some})"
        " for the chip's own manuals."
    )
    return replace(request, hardware=vendor), hint


def resolve_hardware(
    snapshot: Snapshot, request: RetrieveRequest, layout: Layout
) -> ResolvedHardware:
    """Resolve the hardware of a request. Raises UnknownHardware."""
    run_time = bool(request.given_signals or request.log or request.metrics)
    access = request.access_scope

    def read() -> ResolvedHardware:
        chips = snapshot.knowledge.chips(access)
        scope = scope_of(request, chips, lambda chip: snapshot.languages_of(chip, access))
        own, named = with_own_toolchain(request, scope, chips, layout)
        return ResolvedHardware(
            scope,
            own,
            named.language,
            {key: fact.value for key, fact in scope.facts.items()},
            tuple(s for place in scope.lineage for s in chips.specs[place].signatures),
            rules_of(chips.specs, scope.lineage),
        )

    key = (request.hardware, request.language, request.categories, access, run_time)
    return snapshot.keep("places", key, read)
