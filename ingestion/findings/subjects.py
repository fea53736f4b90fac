"""Which chip a stated value is about: the document's own, its family, another one, or not clear.

The evidence is read from the nearest outwards: the row or column header of a table, its labels, the
sentence, the caption, the headings from the innermost, the title, the file name. The first text
that names a chip decides. Names are those of the registry, and what looks like a name beside them:
another model of the same make (MI100 beside MI250X, Gaudi3 beside Gaudi2), a letter with three
digits (V100). Where nothing names a chip, the document's declared hardware holds, unless the
document mentions other chips more often than its own, or is declared about several.

Knows nothing about values. A name without a digit that is not registered is not seen as a chip.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kb.hardware.facts import SubjectKind
from kb.hardware.lineage import NameIndex, Registry, find, lineage
from kb.hardware.spec import HardwareSpec

MAX_SHOWN = 120  # characters of what names a subject
MAX_COUNTED = 200_000  # characters of a document in which mentions are counted

# What stands beside a chip's name without narrowing it to a variant: "AMD Instinct MI250X GPU".
_PLAIN = re.compile(
    r"\b(?:the|gpus?|npus?|tpus?|ipus?|apus?|asics?|chips?|devices?|accelerators?|processors?"
    r"|cards?|boards?|products?|models?|values?|specs?|specifications?|per|on|for|of|in)\b",
    re.IGNORECASE,
)
# Boards of one chip that differ in memory, clock and power.
_FORM = re.compile(
    r"\b(?:SXM\d?|NVL\d*|PCIe?(?= (?:card|board|version|variant|module|model|form)))\b",
    re.IGNORECASE,
)
_RANGE = re.compile(r"\b(?:series|family|generation|class|products)\b", re.IGNORECASE)
# "PCIe Gen 4" and "HBM3" are no names of chips, whatever a registry calls its chips.
_NO_NAME = re.compile(r"\bPCIe?[ -]*(?:Gen)? ?\d(?:\.\d)?\b|\bGen ?\d\b", re.IGNORECASE)
_MODEL = re.compile(r"(?<![\w.-])(?:([A-Z]{1,3})-?|(?:RTX|GTX|RX) )\d{3,4}[A-Z]{0,2}(?!\w)")
_NO_MODEL = frozenset(
    re.findall(r"\w+", "AES BF CRC CVE DDR FP HBM IEC INT ISO K M N PR Q RC RFC RV SHA TF UTF X Y")
)


@dataclass(frozen=True)
class Subject:
    """`hardware_id` is who the value is proposed for, `text` what names the subject (empty where
    nothing does). `family` values hold for the chip too; `unclear` ones are for a person to judge.
    """

    hardware_id: str
    text: str
    kind: SubjectKind


@dataclass(frozen=True)
class _Named:
    """What one text names: declared chips, families above them, and whether others too."""

    own: frozenset[str]
    families: frozenset[str]
    others: bool

    @property
    def anything(self) -> bool:
        return bool(self.own or self.families or self.others)


class DocumentSubjects:
    """Built once per document. `hardware` are the ids that it is declared to be about, `titles` its
    title and file name, `texts` its headings and text.
    """

    def __init__(
        self,
        hardware: Sequence[str],
        registry: Mapping[str, HardwareSpec],
        titles: Sequence[str],
        texts: Iterable[str] = (),
    ) -> None:
        self._registry: Registry = registry
        self._hardware = tuple(hardware)
        self._titles = [re.sub(r"\.\w{1,5}$|_", " ", title) for title in titles if title]
        lines = [lineage(chip, registry) for chip in hardware if chip in registry]
        above = {place for line in lines for place in line} - set(hardware)
        vendors = {place for place in above if registry[place].kind == "vendor"}
        self._families = frozenset(above - vendors)
        self._ignored = frozenset(vendors)
        self._names = NameIndex(
            {i: _spellings((i, hw.name, *hw.aliases)) for i, hw in registry.items()}
        )
        own = [spec for i, spec in registry.items() if i in hardware]
        kin = [*own, *(registry[i] for i in self._families)]
        self._spellings = frozenset(
            _joined(name) for spec in own for name in (spec.id, spec.name, *spec.aliases)
        )
        models = [name for spec in kin for name in (spec.id, *spec.aliases)]
        self._known = frozenset(_joined(name) for name in models)
        self._makes = _makes(models)
        self._crowded = self._mentions_others_more(texts)

    def of(
        self,
        header: str = "",
        sentence: str = "",
        labels: Sequence[str] = (),
        sections: Sequence[str] = (),
    ) -> Subject | None:
        """The subject of a value, None where that is another chip.

        `header` is the head of a table's row or column that should name a chip, `labels` are the
        other heads and the caption, `sections` the headings from the outermost.
        """
        header = " ".join(header.split())
        if not _PLAIN.sub(" ", header).strip(" :()"):  # "Chip", "Value"
            header = ""
        in_header = self._named(header)
        if in_header.anything:
            return self._named_by(in_header, header, is_variant=self._is_variant(header))
        variant = header or self._form_in((sentence, *labels))
        for text in (sentence, *labels, *reversed(sections), *self._titles):
            named = self._named(text)
            if not named.anything:
                continue
            if text == sentence and named.own and named.others:
                return None  # which of the two has the value is more than a rule can tell
            subject = self._named_by(named, self._name_of(named), is_variant=False)
            if subject is not None and variant:  # "Mode 1" of this chip
                return Subject(subject.hardware_id, variant, "unclear")
            return subject
        if variant or self._crowded or len(self._hardware) != 1:
            return Subject(self._hardware[0], variant, "unclear")
        return Subject(self._hardware[0], "", "chip")

    def names_own(self, header: str) -> bool:
        """Whether a header names a chip that the document is declared to be about."""
        return bool(self._named(header).own)

    def _form_in(self, texts: Sequence[str]) -> str:
        """The form of board that a text is about, where it is no part of the chip's name."""
        for text in texts:
            for match in _FORM.finditer(text):
                if not any(_joined(match[0]) in known for known in self._spellings):
                    return match[0]
        return ""

    def _named_by(self, named: _Named, shown: str, *, is_variant: bool) -> Subject | None:
        if named.own:
            # What several chips share may hold for each of them.
            shared = named.others or len(named.own) > 1
            kind: SubjectKind = "unclear" if shared or is_variant else "chip"
            return Subject(sorted(named.own)[0], shown[:MAX_SHOWN], kind)
        if named.others:
            return None
        kind = "family" if len(self._hardware) == 1 else "unclear"
        return Subject(self._hardware[0], shown[:MAX_SHOWN], kind)

    def _name_of(self, named: _Named) -> str:
        names = sorted(named.own or named.families)
        return self._registry[names[0]].name if names else ""

    def _named(self, text: str) -> _Named:
        cleaned = _NO_NAME.sub(" ", text)
        ids = self._names.find(cleaned)
        own = frozenset(ids & set(self._hardware))
        families = frozenset(ids & self._families)
        others = bool(ids - own - families - self._ignored)
        # A short text may be a name that is not looked for in running text.
        exact = find(cleaned, self._registry) if len(cleaned) <= MAX_SHOWN else None
        if exact in self._hardware:
            own |= {exact}
        return _Named(own, families, others or self._other_model(cleaned))

    def _other_model(self, text: str) -> bool:
        """Whether a name of the same make, or of the common form, is no name of this chip."""
        for make in self._makes:
            for match in make.finditer(text):
                if not self._is_known(match[0], text[match.end() :]):
                    return True
        for match in _MODEL.finditer(text):
            if match[1] not in _NO_MODEL and not self._is_known(match[0], text[match.end() :]):
                return True
        return False

    def _is_known(self, name: str, after: str) -> bool:
        joined = _joined(name)
        if any(known in (joined, joined.rstrip("s")) for known in self._known):
            return True
        # "MI200 series" is what an MI250X belongs to.
        round_number = re.fullmatch(r"(\D*\d+?)0+", joined)
        if round_number is None or not _RANGE.match(after.lstrip()):
            return False
        return any(known.startswith(round_number[1]) for known in self._known)

    def _is_variant(self, header: str) -> bool:
        """Whether a header says more than the chip's name: "X1 PCIe", "X1 80 GB", "X1, mode 2"."""
        tail = _joined(_PLAIN.sub(" ", header))
        return not any(tail.endswith(known) for known in self._spellings)

    def _mentions_others_more(self, texts: Iterable[str]) -> bool:
        own = others = counted = 0
        for text in texts:
            counted += len(text)
            if counted > MAX_COUNTED:
                break
            named = self._named(text)
            own += bool(named.own or named.families)
            others += named.others
        return others > own


def _spellings(names: Sequence[str]) -> list[str]:
    """The names, also with a space before their number: `cdna3` is written "CDNA 3" as well."""
    return [*names, *(re.sub(r"(?<=[A-Za-z]{2})(?=\d)", " ", name) for name in names)]


def _joined(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def _makes(names: Iterable[str]) -> list[re.Pattern[str]]:
    """Patterns of the models beside these: `mi250x` gives "MI" and a number."""
    patterns = set()
    for name in names:
        match = re.match(r"(.*[a-z][\W_]?)(\d+)[a-z]*$", name.lower())
        letters = _joined(match[1]) if match else ""
        if match is None or len(letters) < 2 or letters in ("gen", "sm", "rev", "ver"):
            continue
        stem = r"[\s_-]?".join(re.escape(part) for part in re.split(r"[\W_]+", match[1]) if part)
        digits = rf"\d{{1,{len(match[2]) + 1}}}"
        patterns.add(rf"(?<![\w.]){stem}[\s_-]?{digits}[a-z]{{0,2}}(?![\w.]*\d)(?!\w)")
    return [re.compile(pattern, re.IGNORECASE) for pattern in sorted(patterns)]
