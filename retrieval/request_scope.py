"""What a request is about and may see: the chip with its lineage and facts, the languages that its
kernels can be written in, and the filter that every store query takes.

Fails closed: an unknown hardware is an error, and a run-time condition without a hardware sees only
what is about no chip in particular.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kb.catalog.facts import Fact
from kb.catalog.hardware import HardwareRegistry
from kb.hardware.spec import HardwareSpec, ToolchainSpec
from kb.scope import ANY, CATEGORIES, ScopeFilter
from retrieval.language_words import is_alone
from retrieval.layout import Layout
from retrieval.request import RetrieveRequest

RUN_EVERYWHERE = ("torch",)  # languages of programs that any chip of PyTorch's runs

Documented = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True)
class RequestScope:
    """The hardware part of a request, resolved. `toolchain` is that of the language, where no model
    has seen it. `spoken` are all languages of the chip, whichever the request names.
    """

    hardware: HardwareSpec | None
    lineage: tuple[str, ...]
    filter: ScopeFilter
    facts: Mapping[str, Fact]
    toolchain: ToolchainSpec | None = None
    spoken: tuple[str, ...] = ()

    @property
    def named(self) -> dict[str, object] | None:
        """The `hardware` of an answer."""
        if self.hardware is None:
            return None
        name = self.hardware.name
        return {"id": self.hardware.id, "name": name, "lineage": list(self.lineage)}

    @property
    def runnable(self) -> tuple[str, ...]:
        """Languages of kernels that can run there; empty where that is not known."""
        languages = self.filter.languages or ()
        return tuple(name for name in languages if name not in RUN_EVERYWHERE)


def scope_of(
    request: RetrieveRequest, registry: HardwareRegistry, documented: Documented
) -> RequestScope:
    """The scope of a request; `documented` gives the languages that a hardware's own documents
    name. Raises UnknownHardware.
    """
    categories = request.categories or CATEGORIES
    if request.hardware is not None:
        spec = registry.get(request.hardware)
        lineage = registry.lineage(spec.id)
        spoken = _languages(lineage, registry.all(), documented)
        languages = spoken if request.language is None else (request.language,)
        scope = ScopeFilter((*lineage, ANY), categories, languages, request.access_scope)
        facts = registry.effective_facts(spec.id)
        own = tuple(name for name in spoken if name not in RUN_EVERYWHERE)
        return RequestScope(spec, lineage, scope, facts, spoken=own)
    # Nothing foreign may answer a run-time condition; a plain question may be about any chip.
    run_time = request.given_signals or request.log or request.metrics
    admitted_any = (ANY,) if run_time else None
    asked = (request.language,) if request.language else None
    return RequestScope(
        None, (), ScopeFilter(admitted_any, categories, asked, request.access_scope), {}
    )


def _languages(
    lineage: Sequence[str],
    specs: Mapping[str, HardwareSpec],
    documented: Documented,
) -> tuple[str, ...]:
    """What kernels of a chip can be written in: the languages that its description, its toolchains
    or its own documents name. Text, moves and skills of another language are of no use there.
    """
    declared = next((specs[h].languages for h in lineage if specs[h].languages), ())
    chains = (name for h in lineage for name in specs[h].toolchains)
    own = documented(lineage[0])
    return tuple(dict.fromkeys((*declared, *chains, *own, *RUN_EVERYWHERE)))


def own_chains(
    lineage: Sequence[str], specs: Mapping[str, HardwareSpec], spoken: Sequence[str] = ()
) -> dict[str, ToolchainSpec]:
    """The toolchain of each language of a chip; an empty one for what a chip with languages of its
    own alone only names: what its manuals say does not depend on how a kernel is compiled.
    """
    chains: dict[str, ToolchainSpec] = {}
    known = [specs[place] for place in lineage if place in specs]
    for spec in reversed(known):  # the chip's own description wins
        chains |= spec.toolchains
    declared = next((spec.languages for spec in known if spec.languages), ())
    named = tuple(dict.fromkeys((*declared, *spoken)))
    if is_alone(named):
        chains = dict.fromkeys(named, ToolchainSpec()) | chains
    return chains


def own_toolchain(
    language: str | None,
    lineage: Sequence[str],
    specs: Mapping[str, HardwareSpec],
    layout: Layout,
    spoken: Sequence[str] = (),
) -> tuple[str, ToolchainSpec] | None:
    """The language and toolchain of a chip that models cannot know: the named language, else the
    only one of its own. None where there is none. `spoken` are languages that its documents name.
    """
    own = {
        name: chain
        for name, chain in own_chains(lineage, specs, spoken).items()
        if name not in layout.known_languages and not chain.builtin
    }
    if language is None and len(own) == 1:
        return next(iter(own.items()))
    return (language, own[language]) if language in own else None


def with_own_toolchain(
    request: RetrieveRequest, scope: RequestScope, registry: HardwareRegistry, layout: Layout
) -> tuple[RequestScope, RetrieveRequest]:
    """With the toolchain of the chip's own language, empty where none is stated; a chip that has
    one such language is asked about it where none is named.
    """
    if scope.hardware is None:
        return scope, request
    own = own_toolchain(request.language, scope.lineage, registry.all(), layout, scope.spoken)
    if own is None:
        return scope, request
    language, toolchain = own
    return replace(scope, toolchain=toolchain), replace(request, language=language)
