"""The lineage of hardware (chip, family, vendor), and the hardware that a name or text refers to.

Pure functions over a registry: a mapping of ids to descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kb.errors import InvalidKnowledge, UnknownHardware
from kb.hardware.spec import FactSpec, HardwareSpec

Registry = Mapping[str, HardwareSpec]

MAX_NAMED = 100_000
_MIN_NAME_LENGTH = 3
# Words that are part of names, but do not name hardware alone.
_COMMON_WORDS = frozenset(
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
# A datasheet is about every chip of the model, a measurement about one device.
_FACT_RANK = {"datasheet": 0, "measured": 1, "derived": 2}


@dataclass(frozen=True)
class EffectiveFact:
    """A fact, and the id of the hardware that states it: the hardware itself or an ancestor."""

    fact: FactSpec
    owner: str


def find(name: str, registry: Registry) -> str | None:
    """The id that a name, an alias or another spelling of one refers to, or None."""
    wanted = folded_name(name)
    if not wanted:
        return None
    ids = sorted(registry)
    for hardware_id in ids:
        if wanted == folded_name(hardware_id):
            return hardware_id
    for hardware_id in ids:
        known = (registry[hardware_id].name, *registry[hardware_id].aliases)
        if wanted in {folded_name(name) for name in known}:
            return hardware_id
    return None


def resolve(name: str, registry: Registry) -> str:
    """Like `find`, but raises UnknownHardware, with the nearest ids, for an unknown name."""
    hardware_id = find(name, registry)
    if hardware_id is None:
        raise UnknownHardware(name, registry)
    return hardware_id


@lru_cache(maxsize=20_000)
def folded_name(name: str) -> str:
    """A name without case and separators: "H100 SXM5", "h100-sxm5" and "H100_SXM5" are equal."""
    return re.sub(r"[\W_]+", "", name).lower()


def lineage(hardware_id: str, registry: Registry) -> tuple[str, ...]:
    """The hardware and its ancestors, from the chip to the vendor."""
    if hardware_id not in registry:
        raise UnknownHardware(hardware_id, registry)
    chain = [hardware_id]
    while (parent := registry[chain[-1]].parent) is not None:
        if parent in chain:
            raise InvalidKnowledge(
                f"the lineage of {hardware_id} is circular: {' -> '.join([*chain, parent])}",
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
    """All descendants of a hardware."""
    if hardware_id not in registry:
        raise UnknownHardware(hardware_id, registry)
    below: set[str] = set()
    border = {hardware_id}
    while border:
        border = {id_ for id_ in registry if registry[id_].parent in border} - below
        below |= border
    return frozenset(below - {hardware_id})


def effective_facts(hardware_id: str, registry: Registry) -> dict[str, EffectiveFact]:
    """The valid fact for each key: that of the nearest hardware in the lineage that states it; of
    several there, datasheet precedes measured, and measured derived."""
    effective: dict[str, EffectiveFact] = {}
    for owner in lineage(hardware_id, registry):
        for fact in sorted(registry[owner].facts, key=lambda fact: _FACT_RANK.get(fact.kind, 9)):
            effective.setdefault(fact.key, EffectiveFact(fact, owner))
    return effective


def narrowest(ids: Iterable[str], registry: Registry) -> frozenset[str]:
    """The ids without the ancestors of others: {nvidia, h100} -> {h100}."""
    chosen = set(ids)
    above = {parent for id_ in chosen for parent in lineage(id_, registry)[1:]}
    return frozenset(chosen - above)


def registry_problems(registry: Registry) -> list[str]:
    """Inconsistencies of a registry: unknown parents, circular lineages, ambiguous names."""
    problems = []
    ids: dict[str, set[str]] = {}
    aliases: dict[str, set[str]] = {}
    for hardware_id, hardware in sorted(registry.items()):
        ids.setdefault(folded_name(hardware_id), set()).add(hardware_id)
        for alias in hardware.aliases:
            aliases.setdefault(folded_name(alias), set()).add(hardware_id)
        try:
            lineage(hardware_id, registry)
        except InvalidKnowledge as error:
            problems.append(f"{error.message}. {error.hint}")
    # `find` prefers an id to an alias, so an id may equal an alias of other hardware.
    shared = {name: owners for name, owners in aliases.items() if name not in ids}
    clashes = [*ids.items(), *shared.items()]
    problems += [_clash(name, owners) for name, owners in sorted(clashes) if len(owners) > 1]
    return problems


def _clash(name: str, ids: Collection[str]) -> str:
    return f"the name {name} belongs to {', '.join(sorted(ids))}. Keep it in one of them."


class NameIndex:
    """Finds the ids that a text names, by their names."""

    def __init__(self, names: Mapping[str, Iterable[str]]) -> None:
        self._owner: dict[str, set[str]] = {}
        spellings: dict[str, str] = {}
        for hardware_id, known in names.items():
            for name in known:
                parts = _parts(name)
                if _usable(parts):
                    self._owner.setdefault("".join(parts), set()).add(hardware_id)
                    # `sm_90` also matches "sm90", not the other way round.
                    spellings["".join(parts)] = max(
                        spellings.get("".join(parts), ""), _spelling(parts), key=len
                    )
        longest = sorted(spellings.values(), key=lambda s: (-len(s), s))
        # A plural s may follow: "On H100s and A100s".
        self._pattern = (
            re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(longest)})(?=s?(?![A-Za-z0-9]))", re.I)
            if longest
            else None
        )

    def find(self, text: str) -> frozenset[str]:
        """The ids named in a text; of overlapping names, the longest counts."""
        if self._pattern is None:
            return frozenset()
        ids: set[str] = set()
        for match in self._pattern.finditer(text):
            if _is_written_as_name(match[0]):
                ids |= self._owner["".join(_parts(match[0]))]
        return frozenset(ids)


def chips_named(text: str, registry: Registry) -> frozenset[str]:
    """The accelerators without models below them that a text names, in its first MAX_NAMED
    characters."""
    parents = {hardware.parent for hardware in registry.values()}
    chips = [h for h in registry.values() if h.kind == "accelerator" and h.id not in parents]
    index = _index_of(tuple((chip.id, chip.name, *chip.aliases) for chip in chips))
    return index.find(text[:MAX_NAMED])


def names_written(text: str, hardware: Iterable[HardwareSpec]) -> list[str]:
    """The names of this hardware as a text writes them, also short ones such as M5."""
    pattern = _names_of(tuple(n for h in hardware for n in (h.id, h.name, *h.aliases)))
    return pattern.findall(text[:MAX_NAMED])


def joined_name(name: str) -> str:
    """The name in lower case without separators."""
    return re.sub(r"[\W_]+", "", name).lower()


def patterns_of_makes(names: Iterable[str]) -> list[re.Pattern[str]]:
    """Patterns for other models of the same makes: `mi250x` gives "MI" and a number."""
    patterns = set()
    for name in names:
        match = re.match(r"(.*[a-z][\W_]?)(\d+)[a-z]*$", name.lower())
        letters = joined_name(match[1]) if match else ""
        if match is None or len(letters) < 2 or letters in ("gen", "sm", "rev", "ver"):
            continue
        stem = r"[\s_-]?".join(re.escape(part) for part in re.split(r"[\W_]+", match[1]) if part)
        digits = rf"\d{{1,{len(match[2]) + 1}}}"
        patterns.add(rf"(?<![\w.]){stem}[\s_-]?{digits}[a-z]{{0,2}}(?![\w.]*\d)(?!\w)")
    return [re.compile(pattern, re.IGNORECASE) for pattern in sorted(patterns)]


def other_model(text: str, names: Iterable[str]) -> str:
    """The first name in a text of another model of the makes of these names, if the text has none
    of the names. "MI200 series" names no model."""
    known = [*names]
    joined = joined_name(text)
    if any(joined_name(name) in joined for name in known):
        return ""
    found = (m for make in patterns_of_makes(known) for m in make.finditer(text))
    return next((m[0] for m in found if not _SERIES.match(text, m.end())), "")


_SERIES = re.compile(r"[\s-]*(?:series|family|generation|class|products)\b", re.IGNORECASE)


@lru_cache(maxsize=64)
def _names_of(names: tuple[str, ...]) -> re.Pattern[str]:
    spellings = sorted({_spelling(_parts(name)) for name in names}, key=len, reverse=True)
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(spellings)})(?=s?(?![A-Za-z0-9]))", re.I)


@lru_cache(maxsize=8)
def _index_of(names: tuple[tuple[str, ...], ...]) -> NameIndex:
    return NameIndex({known[0]: known for known in names})


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"[^a-z0-9]+", name.lower()) if part]


def _spelling(parts: list[str]) -> str:
    """A pattern for the name with any separators; `sm_90` does not match in "SM 90 % busy"."""
    spelling = re.escape(parts[0])
    for part in parts[1:]:
        tight = part.isdigit() and len(parts[0]) <= 2
        spelling += ("[_-]?" if tight else r"[\s_./-]*") + re.escape(part)
    return spelling


def _usable(parts: list[str]) -> bool:
    joined = "".join(parts)
    if len(joined) < _MIN_NAME_LENGTH or joined.isdigit():
        return False
    return len(parts) > 1 or parts[0] not in _COMMON_WORDS


def _is_written_as_name(written: str) -> bool:
    if any(char.isdigit() for char in written):
        return True
    if len(written) == _MIN_NAME_LENGTH:
        return written.isupper()
    return written[0].isupper()
