"""The lineage of hardware (chip, family, vendor), and which hardware a name means.

Pure functions over a mapping id -> hardware. They need only `id`, `name`, `parent`, `aliases` (and
`facts` where facts are inherited), so they serve parsed files and catalog rows alike.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from kb.errors import InvalidKnowledge, UnknownHardware


class HardwareLike(Protocol):
    """What lineage and names need of a hardware."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def aliases(self) -> Sequence[str]: ...


class FactLike(Protocol):
    """What inheritance needs of a fact."""

    @property
    def key(self) -> str: ...
    @property
    def kind(self) -> str: ...


FactT = TypeVar("FactT", bound=FactLike)
FactT_co = TypeVar("FactT_co", bound=FactLike, covariant=True)


class WithFacts(HardwareLike, Protocol[FactT_co]):
    """A hardware that states facts."""

    @property
    def facts(self) -> Sequence[FactT_co]: ...


Registry = Mapping[str, HardwareLike]

# A published number speaks for every chip of the model, a measured one for its own device.
_RANK = {"datasheet": 0, "measured": 1, "derived": 2}


@dataclass(frozen=True)
class EffectiveFact(Generic[FactT]):
    """A fact with its `owner`: the id that states it, the hardware itself or one above it."""

    fact: FactT
    owner: str


def find(name: str, registry: Registry) -> str | None:
    """The id that a name, alias or spelling of one means, or None."""
    wanted = plain(name)
    if not wanted:
        return None
    ids = sorted(registry)
    for hardware_id in ids:
        if wanted == plain(hardware_id):
            return hardware_id
    for hardware_id in ids:
        known = (registry[hardware_id].name, *registry[hardware_id].aliases)
        if wanted in {plain(name) for name in known}:
            return hardware_id
    return None


def resolve(name: str, registry: Registry) -> str:
    """Like `find`, but raises UnknownHardware, which names the nearest ids, for an unknown name."""
    hardware_id = find(name, registry)
    if hardware_id is None:
        raise UnknownHardware(name, registry)
    return hardware_id


@lru_cache(maxsize=20_000)
def plain(name: str) -> str:
    """A name without case and separators: "H100 SXM5", "h100-sxm5" and "H100_SXM5" are one."""
    return re.sub(r"[\W_]+", "", name).lower()


def lineage(hardware_id: str, registry: Registry) -> tuple[str, ...]:
    """The hardware and everything above it, from the chip up to the vendor."""
    if hardware_id not in registry:
        raise UnknownHardware(hardware_id, registry)
    chain = [hardware_id]
    while (parent := registry[chain[-1]].parent) is not None:
        if parent in chain:
            raise InvalidKnowledge(
                f"the lineage of {hardware_id} runs in a circle: {' -> '.join([*chain, parent])}",
                hint=f"Change the parent of one of {', '.join(chain)}.",
                details={"hardware": hardware_id, "chain": [*chain, parent]},
            )
        if parent not in registry:
            raise InvalidKnowledge(
                f"{chain[-1]} has the parent {parent}, which is not registered",
                hint=f"Register {parent} first, or correct the parent of {chain[-1]}.",
                details={"hardware": chain[-1], "parent": parent},
            )
        chain.append(parent)
    return tuple(chain)


def descendants(hardware_id: str, registry: Registry) -> frozenset[str]:
    """Everything below a hardware, without itself."""
    if hardware_id not in registry:
        raise UnknownHardware(hardware_id, registry)
    below: set[str] = set()
    border = {hardware_id}
    while border:
        border = {id_ for id_ in registry if registry[id_].parent in border} - below
        below |= border
    return frozenset(below - {hardware_id})


def siblings(hardware_id: str, registry: Registry) -> frozenset[str]:
    """The others with the same parent; none for a hardware without one."""
    if hardware_id not in registry:
        raise UnknownHardware(hardware_id, registry)
    parent = registry[hardware_id].parent
    if parent is None:
        return frozenset()
    return frozenset(id_ for id_ in registry if registry[id_].parent == parent) - {hardware_id}


def effective_facts(
    hardware_id: str, registry: Mapping[str, WithFacts[FactT]]
) -> dict[str, EffectiveFact[FactT]]:
    """The fact that holds for each key: the nearest up the lineage that states it.

    Where one hardware states a key more than once, datasheet wins over measured, measured over
    derived.
    """
    effective: dict[str, EffectiveFact[FactT]] = {}
    for owner in lineage(hardware_id, registry):
        for fact in sorted(registry[owner].facts, key=lambda fact: _RANK.get(fact.kind, 9)):
            effective.setdefault(fact.key, EffectiveFact(fact, owner))
    return effective


def narrowest(ids: Iterable[str], registry: Registry) -> frozenset[str]:
    """Without the ids that stand above another of them: {nvidia, h100} -> {h100}."""
    chosen = set(ids)
    above = {parent for id_ in chosen for parent in lineage(id_, registry)[1:]}
    return frozenset(chosen - above)


def names_in_text(text: str, registry: Registry) -> frozenset[str]:
    """The registered hardware that a heading or sentence names; for many texts keep a
    `NameIndex`.
    """
    return name_index(registry).find(text)


def name_index(registry: Registry) -> NameIndex:
    """An index of every id, name and alias, to find hardware in many texts."""
    return NameIndex({id_: (hw.id, hw.name, *hw.aliases) for id_, hw in registry.items()})


def registry_problems(registry: Registry) -> list[str]:
    """Why a set of hardware does not hold together: unknown parents, circles, a name with two
    owners.
    """
    problems = []
    ids: dict[str, set[str]] = {}
    aliases: dict[str, set[str]] = {}
    for hardware_id, hardware in sorted(registry.items()):
        ids.setdefault(plain(hardware_id), set()).add(hardware_id)
        for alias in hardware.aliases:
            aliases.setdefault(plain(alias), set()).add(hardware_id)
        try:
            lineage(hardware_id, registry)
        except InvalidKnowledge as error:
            problems.append(f"{error.message}. {error.hint}")
    # An id wins over an alias (see `find`), so a new chip may be called what another is called too.
    shared = {name: owners for name, owners in aliases.items() if name not in ids}
    clashes = [*ids.items(), *shared.items()]
    problems += [_clash(name, owners) for name, owners in sorted(clashes) if len(owners) > 1]
    return problems


def _clash(name: str, ids: Collection[str]) -> str:
    return f"the name {name} belongs to {', '.join(sorted(ids))}. Keep it in one of them."


# -- names: Hardware names in running text.

MIN_LENGTH = 3

_COMMON = frozenset(
    re.findall(
        r"\w+",
        """
        accelerator air all any apple array auto base basic block board cache card chip cloud
        core cores cpu custom default device dpu edge engine family fast generic gpu grace graph
        grid host instinct kernel lite local max memory metal mini model native none npu part
        pro processor sense series shared simd small spark standard tensor test thor tile titan
        tpu ultra unit vector vision warp wave
        """,
    )
)


class NameIndex:
    """Finds which ids a text names. Built once per set of hardware."""

    def __init__(self, names: Mapping[str, Iterable[str]]) -> None:
        self._owner: dict[str, set[str]] = {}
        spellings: dict[str, str] = {}
        for hardware_id, known in names.items():
            for name in known:
                parts = _parts(name)
                if _usable(parts):
                    self._owner.setdefault("".join(parts), set()).add(hardware_id)
                    # `sm_90` also matches where `sm90` is written, not the other way round.
                    spellings["".join(parts)] = max(
                        spellings.get("".join(parts), ""), _spelling(parts), key=len
                    )
        longest = sorted(spellings.values(), key=lambda s: (-len(s), s))
        # a plural s belongs to the name: "On H100s and A100s"
        self._pattern = (
            re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(longest)})(?=s?(?![A-Za-z0-9]))", re.I)
            if longest
            else None
        )

    def find(self, text: str) -> frozenset[str]:
        """The ids named in a text; where names overlap, the longest counts."""
        if self._pattern is None:
            return frozenset()
        ids: set[str] = set()
        for match in self._pattern.finditer(text):
            written = match[0]
            if _written_as_name(written):
                ids |= self._owner["".join(_parts(written))]
        return frozenset(ids)


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"[^a-z0-9]+", name.lower()) if part]


def _spelling(parts: list[str]) -> str:
    """A pattern for the name with other separators. `sm_90` does not match in "SM 90 % busy"."""
    spelling = re.escape(parts[0])
    for part in parts[1:]:
        tight = part.isdigit() and len(parts[0]) <= 2
        spelling += ("[_-]?" if tight else r"[\s_./-]*") + re.escape(part)
    return spelling


def _usable(parts: list[str]) -> bool:
    joined = "".join(parts)
    if len(joined) < MIN_LENGTH or joined.isdigit():
        return False
    return len(parts) > 1 or parts[0] not in _COMMON


def _written_as_name(written: str) -> bool:
    if any(char.isdigit() for char in written):
        return True
    if len(written) == MIN_LENGTH:
        return written.isupper()
    return written[0].isupper()
