"""The page docs/reference/knowledge.md: the built-in knowledge, counted from its files.

Four tables: chips, chips that run in an emulator, whole kernels, skills. Opens no catalog:
documents are parsed and their cards of names counted as ingestion would, which takes about five
seconds of a processor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingestion.builtin import builtin_documents, builtin_hardware
from ingestion.builtin.samples import RAN, CheckMade, ShippedSample, shipped_samples
from ingestion.findings.front_matter import stated_languages
from ingestion.findings.scopes import template_languages
from ingestion.formats import parse
from ingestion.passages import split_sections
from ingestion.symbols.cards import cards_of
from kb.catalog.knowledge.samples import is_shipped_sample
from kb.hardware.lineage import effective_facts, lineage
from kb.hardware.spec import HardwareSpec
from retrieval.diagnose.signatures import load_signatures
from skills.format.schema import RECIPE_JSON, SkillFile
from skills.format.skillfile import read_skill, skill_folders

KINDS = {"accelerator": "chip", "family": "family", "vendor": "vendor"}
# Where the figures of samples were written down, by the folder of the samples.
# Those of FlyDSL are in their row.
RESULTS = {
    "hopper": "nvidia_samples.md",
    "ampere": "nvidia_samples.md",
    "nvidia": "nvidia_samples.md",
    "blackwell": "nvidia_samples.md",
    "amd": "hip_samples.md",
    "cdna4": "hip_samples.md",
}


@dataclass(frozen=True)
class Document:
    """A built-in document: the ids it is about (none: any chip), and the names it defines."""

    hardware: tuple[str, ...]
    names: frozenset[str]
    is_sample: bool


def knowledge_page(manuals: Path, library: Path, notice: str) -> str:
    """The page, from a folder of knowledge and one of skills."""
    specs = {spec.id: spec for spec in builtin_hardware(manuals)}
    samples = shipped_samples(manuals)
    documents = read_documents(manuals, specs)
    skills = [read_skill(folder) for folder in skill_folders(library)]
    general = [document for document in documents if not document.hardware]
    names = sum(len(document.names) for document in documents)
    parts = [
        "# Built-in knowledge",
        "",
        notice,
        f"{len(documents) - len(samples)} documents, {len(samples)} whole kernels,"
        f" {sum(len(spec.facts) for spec in specs.values())} facts, {names} cards of names and"
        f" {len(load_signatures()) + sum(len(spec.signatures) for spec in specs.values())}"
        f" signatures of errors in `hw_manuals`, {len(skills)} skills in `skills/library`. How each"
        " is written: [hw_manuals/FORMAT.md](../../hw_manuals/FORMAT.md). How much of it was"
        " audited: [knowledge_audit.md](../../benchmarks/results/knowledge_audit.md).",
        "",
        *_chips(specs, documents, samples),
        "",
        f"For any chip there are {len(general)} more documents and {len(load_signatures())} more"
        " signatures. `kernlore hardware coverage ID` lists the covered and missing signals and"
        " topics of one chip.",
        "",
        *_emulated(specs, samples),
        "",
        *_kernels(samples),
        "",
        *_skills(skills),
    ]
    return "\n".join(parts) + "\n"


def read_documents(manuals: Path, specs: Mapping[str, HardwareSpec]) -> list[Document]:
    """Every built-in document with the names that it defines, as ingestion reads them."""
    documents = []
    for upload in builtin_documents(manuals):
        parsed = parse(upload.data, upload.name)
        languages = stated_languages(parsed.front_matter) or upload.languages
        cards = cards_of(
            split_sections(parsed.elements), languages or template_languages(upload.hardware, specs)
        )
        documents.append(
            Document(
                tuple(upload.hardware),
                frozenset(card.name for card in cards),
                is_shipped_sample(str(upload.source_key)),
            )
        )
    return documents


def _chips(
    specs: Mapping[str, HardwareSpec],
    documents: Sequence[Document],
    samples: Sequence[ShippedSample],
) -> Iterator[str]:
    yield from (
        "## Chips",
        "",
        "Two numbers: of the chip itself, and with its family and vendor, which a request"
        " for the chip may be shown.",
        "",
        "| id | name | kind | languages | documents | whole kernels | facts | names | signatures |",
        "|---|---|---|---|---|---|---|---|---|",
    )
    ranked = sorted(specs.values(), key=lambda spec: (list(KINDS).index(spec.kind), spec.id))
    for spec in ranked:
        above = lineage(spec.id, specs)
        prose = [document for document in documents if not document.is_sample]
        pairs = (
            _pair(sum(_about(d, [spec.id]) for d in prose), sum(_about(d, above) for d in prose)),
            _pair(
                sum(sample.hardware == spec.id for sample in samples),
                sum(sample.hardware in above for sample in samples),
            ),
            _pair(len(spec.facts), len(effective_facts(spec.id, specs))),
            _pair(len(_names(documents, [spec.id])), len(_names(documents, above))),
            _pair(len(spec.signatures), sum(len(specs[place].signatures) for place in above)),
        )
        cells = (f"`{spec.id}`", spec.name, KINDS[spec.kind], ", ".join(spec.languages), *pairs)
        yield f"| {' | '.join(cells)} |"


def _emulated(specs: Mapping[str, HardwareSpec], samples: Sequence[ShippedSample]) -> Iterator[str]:
    yield from (
        "## Chips that run in an emulator",
        "",
        "Compiler and emulator of these chips are packages that one command installs; without"
        " them, the message about a missing program names it. Their costs are counts or cycles of"
        " a model and no time. The sample of each toolchain is compiled, run and compared by"
        " `kernlore hardware check ID` and by the tests.",
        "",
        "| id | language | programs | cost | whole kernels that ran | where | installed by |",
        "|---|---|---|---|---|---|---|",
    )
    for spec in sorted(specs.values(), key=lambda spec: spec.id):
        for language, chain in spec.toolchains.items():
            if not chain.install:
                continue
            own = [s for s in samples if s.hardware == spec.id and s.language == language]
            ran = [check for s in own if (check := _latest(s.checked, RAN)) is not None]
            where = sorted({check.where for check in ran}) or ["the toolchain's sample alone"]
            cells = (
                f"`{spec.id}`",
                language,
                ", ".join(chain.programs),
                chain.cost,
                str(len(ran)),
                "; ".join(where),
                f"`{chain.install}`",
            )
            yield f"| {' | '.join(cells)} |"


def _pair(own: int, reached: int) -> str:
    return f"{own} / {reached}"


def _about(document: Document, places: Collection[str]) -> bool:
    return not set(document.hardware).isdisjoint(places)


def _names(documents: Sequence[Document], places: Collection[str]) -> set[str]:
    return {name for document in documents if _about(document, places) for name in document.names}


def _kernels(samples: Sequence[ShippedSample]) -> Iterator[str]:
    right = sum(sample.status == "right" for sample in samples)
    yield from (
        "## Whole kernels",
        "",
        f"{len(samples)} files under `hw_manuals/samples`, {right} of them right on a device. An"
        " empty cell was not checked; runs on a stand-in for a device are recorded in"
        " `samples.toml` and do not count here. `kernlore knowledge check` compiles them"
        " again with the installed tools. The roof is the share of the peak that bounds the kernel,"
        " the last figure its speed as a share of a library's.",
        "",
        "| chip | language | kernel | compiles | runs on | right | roof | against a library"
        " | figures |",
        "|---|---|---|---|---|---|---|---|---|",
    )
    for sample in samples:
        ran = _latest(sample.checked, RAN)
        exact = _latest(sample.checked, ("right",))
        built = _latest(sample.checked, ("compiles", *RAN))
        results = RESULTS.get(sample.hardware) if sample.language != "flydsl" else None
        cells = (
            f"`{sample.hardware}`",
            sample.language,
            f"[{sample.title}](../../hw_manuals/{sample.path})",
            f"{built.toolchain}, {built.date}" if built else "",
            ran.where if ran else "",
            str(exact.date) if exact else "",
            ran.roof if ran else "",
            ran.library if ran else "",
            f"[{results}](../../benchmarks/results/{results})" if results else "in the row",
        )
        yield f"| {' | '.join(cell.replace('|', ' ') for cell in cells)} |"


def _latest(checks: Sequence[CheckMade], kinds: Collection[str]) -> CheckMade | None:
    """The newest check of these kinds; of one day the last that is written."""
    chosen = [check for check in checks if check.what in kinds]
    return max(enumerate(chosen), key=lambda row: (row[1].date, row[0]))[1] if chosen else None


def _skills(skills: Sequence[SkillFile]) -> Iterator[str]:
    yield from (
        "## Skills by language",
        "",
        f"{len(skills)} curated skills. One that holds for several languages counts in each, so"
        " the column adds up to more; operators are those with most skills.",
        "",
        "| language | skills | with a recipe | operators |",
        "|---|---|---|---|",
    )
    languages = sorted({name for skill in skills for name in skill.scopes.languages})
    for language in languages:
        chosen = [skill for skill in skills if language in skill.scopes.languages]
        yield _skill_row(language, chosen)
    anywhere = [skill for skill in skills if not skill.scopes.languages]
    if anywhere:
        yield _skill_row("any", anywhere)


def _skill_row(language: str, skills: Sequence[SkillFile]) -> str:
    counted = Counter(op for skill in skills for op in skill.scopes.ops)
    ranked = sorted(counted, key=lambda op: (-counted[op], op))[:8]
    cells = (
        language,
        str(len(skills)),
        str(sum(RECIPE_JSON in skill.files for skill in skills)),
        ", ".join(f"{op} {counted[op]}" for op in ranked),
    )
    return f"| {' | '.join(cells)} |"
