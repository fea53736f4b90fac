"""Knowledge about a target whose language models do not know: how a kernel is launched, and the
chip's complete documents if they fit, else sample kernels, cards of the language and the sections
that answer the questions of a first kernel.

It depends only on the chip, its language, the operator and the budget, not on what happened: every
context of a run starts with the same text, so prompt caches can hold it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kb.catalog.knowledge import samples as sample_rows
from kb.catalog.knowledge.samples import Sample
from kb.catalog.knowledge.section_texts import WholeSection
from kb.catalog.knowledge.symbols import Symbol
from kb.hardware.spec import HardwareSpec, ToolchainSpec
from kb.scope import AccessScope, ScopeFilter
from kb.tokens import below_title, tokenize
from retrieval.compose.cards import symbol_blocks
from retrieval.compose.excerpts import Repeats
from retrieval.compose.sections import Block, fenced, plain, section_blocks
from retrieval.diagnose.linear_patterns import compile_pattern
from retrieval.layout import TargetLayout, load_layout
from retrieval.operators import load_operators
from retrieval.search.names import WORD, names_in
from retrieval.search.ranking import Ranked
from retrieval.snapshot.snapshot import OwnDocument, Snapshot

CHARS_PER_TOKEN = 6.0  # upper bound: longer texts are known to be too large without counting tokens
QUESTION_SECTIONS = 3  # of each question
LEAST_SECTION = 400  # tokens that a section may always take, even if its share is smaller
# A document is about the language if its score is at least this share of the best document's.
ABOUT_LANGUAGE = 0.2
WHOLE = "## The documents of this chip, whole"
WHOLE_OF_LANGUAGE = "## The documents of this chip that are about its language, whole"
ERROR = "error"  # kind of the cards of error codes, which kernels do not contain

NEAR = 0.7  # share of equal lines
# `add_error.py` shows an error; `squared_error.py` computes one.
_FAULTY = re.compile(
    r"(?:\b|_)(?<!squared_)(?<!absolute_)(?:invalid|broken|faulty|wrong|error)(?=\.\w+$|$)", re.I
)
Search = Callable[[str, ScopeFilter], list[Ranked]]  # (question, scope) -> ranked passages


@dataclass(frozen=True)
class Target:
    """A chip with its lineage, and the language of the kernel, which a toolchain in the description
    of `toolchain_of` compiles: that of the chip or of a parent. `op` is canonical, or None. `run`
    is the run of the request: its own kernels are in other parts of its prompts and would change
    the stable text."""

    hardware: HardwareSpec
    lineage: tuple[str, ...]
    language: str
    toolchain: ToolchainSpec
    toolchain_of: str
    op: str | None
    access_scope: AccessScope
    run: str | None = None

    @property
    def toolchain_sample(self) -> str:
        """The sample kernel in hardware.toml, or ""."""
        return self.toolchain.sample

    @property
    def chips(self) -> frozenset[str]:
        """The chips whose documents are the target's own: the chip itself."""
        return frozenset({self.hardware.id})


def target_blocks(
    snapshot: Snapshot,
    target: Target,
    layout: TargetLayout,
    scope: ScopeFilter,
    search: Search,
    budget: int,
    about: Mapping[str, float],
    without: frozenset[str] = frozenset(),
) -> list[Block]:
    """The blocks at the start of the context, in at most `layout.share` of the budget.

    `scope` is the request's; `search` ranks the passages of a scope for a question in words;
    `about` is the result of `language_documents`. Parts with an id in `without` are left out, and
    so are sections of complete documents that contain one; the other parts do not change.
    """
    budget = layout.budget(budget)
    own = own_scope(target.hardware.id, scope)
    launch = [*launch_blocks(target), *_lacking_blocks(snapshot, target, own)]
    used = sum(block.tokens for block in launch)
    samples = _samples(snapshot, target)
    room = int(budget * layout.whole) - used
    whole = _whole_documents(snapshot, target, own, room, about, samples, without)
    if whole is not None:
        room = int(budget * layout.share) - used - sum(block.tokens for block in whole)
        shown = _plain("\n".join(block.text for block in whole))
        fresh = [s for s in samples if _plain(s.code) not in shown]
        if _plain(target.toolchain_sample) in shown:
            target = replace(target, toolchain=replace(target.toolchain, sample=""))
        blocks = [*launch, *whole, *sample_blocks(fresh, target, layout.max_samples, room)]
    else:
        chosen = _selected_blocks(snapshot, target, layout, own, search, budget - used, about)
        blocks = [*launch, *chosen]
    return [block for block in blocks if not without & _ids(block)]


def _ids(block: Block) -> set[str]:
    """The ids that exclude a block; a list of names is not excluded with one of its sections."""
    sections = () if block.kind == "symbols" else block.sections
    # A complete document has already been stripped of excluded sections.
    return {block.id, *block.passages, *sections}


def _plain(text: str) -> str:
    """The text with white space normalised."""
    return " ".join(text.split())


def _one_in_other(text: str, other: str) -> bool:
    return text in other or other in text


def own_scope(chip: str, scope: ScopeFilter) -> ScopeFilter:
    """The scope of the chip's own documents, in any language."""
    return replace(scope, hardware=(chip,), categories=("hardware",), languages=None)


def launch_blocks(target: Target) -> list[Block]:
    """The naming, launch and check of a kernel for the target, from its hardware.toml."""
    chain = target.toolchain
    lines = []
    if chain.suffix:
        lines.append(f"A source file ends in {chain.suffix}.")
    if entry := chain.entry:
        lines.append(f"The entry is called {entry}.")
    if interface := chain.interface:
        lines.append(interface.strip())
    if not lines:
        return []
    if target.toolchain_of != target.hardware.id:
        lines.append(
            f"This is the toolchain of {target.toolchain_of}: {target.hardware.id} may lack a part"
            " of what it accepts, and its manuals count."
        )
    source = f"hardware.toml of {target.toolchain_of}, language {target.language}"
    text = "\n".join(lines)
    head = plain("launch", "launch", "## How a kernel is launched")
    return [head, fenced("launch", "launch", source, (target.hardware.id,), text)]


# -- what the chip lacks

LACKING = 8  # passages of which a sentence is quoted
LACKING_READ = 60  # passages that are searched for one
LACKING_CHARS = 300  # characters of a sentence
_LACKING_WORDS = "not supported cannot does not support unsupported important only lacks"
_LACKS = compile_pattern(
    r"\b(?:(?:does|do|is|are|can|has|have)(?: not|n't)|cannot|can't) (?:yet |currently |be )?"
    r"(?:support|understand|implement|access|available|allow|provid|contain|handle|load|store|issu"
    r"|execut)\w*|\bunsupported\b|\bnot (?:yet )?(?:supported|implemented|available|allowed)\b"
    r"|\bonly supports?\b|\blacks?\b|\bmust (?:always )?be \S*aligned\b"
)
_OF_HARDWARE = compile_pattern(
    r"\b(?:instructions?|vectors?|mask\w*|registers?|memor(?:y|ies)|caches?|loads?|stores?|lanes?"
    r"|banks?|DMA|units?|precision|float\w*|integers?|atomics?|align\w*|barriers?|L[12])\b"
)


def _lacking_blocks(snapshot: Snapshot, target: Target, own: ScopeFilter) -> list[Block]:
    """Sentences about what the chip does not support, which a kernel for its family would otherwise
    use, of documents that name the chip."""
    spec = target.hardware
    names = [name.lower() for name in (spec.id, spec.name, *spec.aliases)]
    texts = snapshot.texts_about((spec.id,), own)
    naming = {i for i, text in texts.items() if any(name in text.lower() for name in names)}
    found = snapshot.search("passage", tokenize(_LACKING_WORDS), own, LACKING_READ)
    passages = snapshot.load(list(found), own)
    blocks: list[Block] = []
    said = set[str]()
    for passage in (passages[seq] for seq in found if seq in passages):
        if passage.document_id not in naming:
            continue
        sentences = [
            sentence
            for sentence in map(_plain, re.split(r"(?<=[.!?])\s+|\n{2,}", passage.text))
            if len(sentence) <= LACKING_CHARS and "|" not in sentence and sentence not in said
            if _LACKS.search(sentence) and _OF_HARDWARE.search(sentence)
        ]
        if not sentences:
            continue
        said.update(sentences)
        source = f"{passage.document_title} (v{passage.version}), {passage.path[-1]}"
        text = "\n".join(sentences)
        blocks.append(fenced("lacking", passage.id, source, (spec.id,), text))
        if len(blocks) == LACKING:
            break
    head = plain("lacking", "lacking", "## What this chip lacks or demands")
    return [head, *blocks] if blocks else []


# -- complete documents


def _whole_documents(
    snapshot: Snapshot,
    target: Target,
    own: ScopeFilter,
    room: int,
    about: Mapping[str, float],
    samples: Sequence[Sample],
    without: frozenset[str],
) -> list[Block] | None:
    """The chip's documents in order or, if they are too long, those about the language, those with
    kernels or names of it (no instructions for building), those with names; None if these are too
    long too or do not exist."""
    about_chip = snapshot.documents_about((target.hardware.id,), own)
    every = [document for document in about_chip if document.id not in without]
    of_language = [d for d in every if about.get(d.id, 0.0) >= ABOUT_LANGUAGE]
    symbols = own_symbols(snapshot, target.lineage, target.language, target.access_scope)
    naming = {symbol.document_id for symbol in symbols if symbol.kind != ERROR}
    coded = naming | {sample.document_id for sample in samples}
    chosen = [[d for d in of_language if d.id in ids] for ids in (coded, naming)]
    for documents in (every, of_language, *chosen):
        if documents and sum(d.characters for d in documents) <= room * CHARS_PER_TOKEN:
            title = WHOLE if documents == every else WHOLE_OF_LANGUAGE
            blocks = _documents(snapshot, documents, own, title, without)
            if sum(block.tokens for block in blocks) <= room:
                return blocks
    return None


def _documents(
    snapshot: Snapshot,
    documents: Sequence[OwnDocument],
    own: ScopeFilter,
    title: str,
    without: frozenset[str],
) -> list[Block]:
    every = snapshot.sections_of_documents([d.id for d in documents], own)
    sections = [s for s in every if not without & {s.id, *(p.id for p in s.passages)}]
    blocks = [plain("manual", "manual", title)]
    for document in documents:
        members = [s for s in sections if s.document_id == document.id]
        if members:
            blocks.append(_document(document, members))
    return blocks


def _document(document: OwnDocument, sections: Sequence[WholeSection]) -> Block:
    parts = []
    for section in sections:
        heading = (
            f"{'#' * min(max(section.level, 1), 6)} {section.path[-1]}" if section.path else ""
        )
        parts.append("\n".join(filter(None, [heading, section.text])))
    passages = tuple(p.id for section in sections for p in section.passages)
    first = sections[0].passages[0]
    block = fenced(
        "manual",
        document.id,
        f"{document.title} (v{first.version})",
        first.hardware,
        "\n\n".join(parts),
    )
    return replace(block, passages=passages, sections=tuple(s.id for s in sections))


# -- selection, if the documents do not fit


def _selected_blocks(
    snapshot: Snapshot,
    target: Target,
    layout: TargetLayout,
    own: ScopeFilter,
    search: Search,
    budget: int,
    about: Mapping[str, float],
) -> list[Block]:
    samples = [
        s
        for s in _samples(snapshot, target)
        if s.document_id is None or about.get(s.document_id, _stated(s, target)) >= ABOUT_LANGUAGE
    ]
    kernels = sample_blocks(samples, target, layout.max_samples, int(budget * layout.samples))
    room = int(budget * (layout.samples + layout.symbols)) - _tokens(kernels)
    if not kernels:
        shortest = sorted(samples, key=lambda sample: len(sample.code))
        kernels = sample_blocks(shortest, target, 1, int(budget * layout.one_sample))
        if kernels:  # sample and names are worth more than sections
            room = int(budget * layout.share) - _tokens(kernels)
    symbols = own_symbols(snapshot, target.lineage, target.language, target.access_scope)
    names = [s for s in by_use(symbols, about) if s.kind != ERROR]
    # A first kernel resembles the samples shown, so it needs the details of their names.
    used = names_in("\n".join(kernel.text for kernel in kernels), {s.name for s in names})
    needed = _riskiest(used or [symbol.name for symbol in names], symbols)
    cards = symbol_blocks(names, room, needed)
    if cards:
        title = "## Names of the language: signature, meaning, operands, limits, one example"
        cards = [plain("symbols", "symbols", title), *cards]
        cards += _limits(symbols, needed, int(budget * layout.errors))
    room = int(budget * layout.share) - _tokens(kernels) - _tokens(cards)
    given = {s.section_id for s in symbols if s.kind == ERROR}
    given |= {section for kernel in kernels for section in kernel.sections}
    sections = _question_sections(
        snapshot, target, layout, own, search, room, about, frozenset(given)
    )
    if sections:
        head = plain("section", "sections", "## From the documents of this chip")
        sections = [head, *sections]
    return [*kernels, *cards, *sections]


def _stated(sample: Sample, target: Target) -> float:
    """How much the document of a sample is about the language, if it is about the chip's family: 1
    if the sample is in that language."""
    return 1.0 if sample.language == target.language else 0.0


def _limits(symbols: Sequence[Symbol], needed: Sequence[str], room: int) -> list[Block]:
    """The cards of the error codes in the cards of the `needed` names. Manuals often state a limit
    only there."""
    codes = {symbol.name: symbol for symbol in symbols if symbol.kind == ERROR}
    stated = _codes_of(symbols)
    named = dict.fromkeys(code for name in needed for code in stated.get(name, ()))
    return symbol_blocks([codes[name] for name in named], room)


def _riskiest(names: Sequence[str], symbols: Sequence[Symbol]) -> list[str]:
    """The names, sorted by the number of error codes in their cards."""
    stated = _codes_of(symbols)
    return sorted(names, key=lambda name: -len(stated.get(name, ())))


def _codes_of(symbols: Sequence[Symbol]) -> dict[str, list[str]]:
    """The error codes in the cards of each name."""
    codes = {symbol.name for symbol in symbols if symbol.kind == ERROR}
    stated: dict[str, list[str]] = {}
    for symbol in symbols:
        if symbol.kind != ERROR:
            text = "\n".join((*symbol.limits, *symbol.further))
            stated.setdefault(symbol.name, []).extend(names_in(text, codes))
    return stated


def own_symbols(
    snapshot: Snapshot, lineage: Sequence[str], language: str | None, access_scope: AccessScope
) -> list[Symbol]:
    """The cards of a lineage that may be of this language."""
    cards = snapshot.symbols(lineage, access=access_scope)
    return [card for card in cards if load_layout().may_be(card.language, language)]


def usable_symbols(
    snapshot: Snapshot, lineage: Sequence[str], language: str | None, access_scope: AccessScope
) -> list[Symbol]:
    """The cards for a kernel in this language: those of the language that are about no chip, then
    those of the lineage, which say more about a name that both have."""
    own = own_symbols(snapshot, lineage, language, access_scope)
    if language is None or not load_layout().is_known(language):
        return own
    every = snapshot.symbols(access=access_scope)
    return [*(card for card in every if not card.hardware and card.language == language), *own]


def _tokens(blocks: Sequence[Block]) -> int:
    return sum(block.tokens for block in blocks)


def of_language(cards: Sequence[Symbol], about: Mapping[str, float]) -> list[Symbol]:
    """The cards without those of the chip's documents that are about something else. `about` is the
    result of `language_documents`, or empty."""
    return [card for card in cards if about.get(card.document_id, 1.0) >= ABOUT_LANGUAGE]


def texts_of(
    snapshot: Snapshot, hardware: str, access_scope: AccessScope, about: Mapping[str, float]
) -> list[str]:
    """The live text of a chip's own documents; with `about`, only of those about the language."""
    own = ScopeFilter((hardware,), ("hardware",), access_scope=access_scope)
    texts = snapshot.texts_about((hardware,), own)
    return [text for i, text in texts.items() if not about or about.get(i, 0.0) >= ABOUT_LANGUAGE]


def by_use(symbols: Sequence[Symbol], about: Mapping[str, float]) -> list[Symbol]:
    """The symbols of the documents about the language; those of the closest document come first."""
    own = [s for s in symbols if about.get(s.document_id, 0.0) >= ABOUT_LANGUAGE]
    return sorted(own, key=lambda s: (-about[s.document_id], s.document_title, s.ordinal))


def language_documents(snapshot: Snapshot, target: Target, own: ScopeFilter) -> dict[str, float]:
    """How much each document of the chip is about its language: id -> 0 to 1, 1 for the most.

    A document that was uploaded for the language counts 1. For the others it is the number of words
    that the document shares with kernels in the language, error codes and names of the chip, each
    divided by the number of documents that have it: words of every language count little, and the
    chip's own names decide.
    """
    texts = snapshot.texts_about((target.hardware.id,), own)
    declared = snapshot.documents_for_language(target.language)
    code = snapshot.code_in((target.hardware.id,), target.language, own)
    sources = [target.toolchain_sample, *code, target.language, target.hardware.id]
    sources += [signature.pattern for signature in target.hardware.signatures]
    names = {word for source in sources for word in WORD.findall(source) if len(word) > 1}
    title = target.hardware.name.lower()
    words = {document: names & set(WORD.findall(text)) for document, text in texts.items()}
    for document, text in texts.items():
        if title in text.lower():
            words[document].add(title)
    counts = Counter(word for present in words.values() for word in present)
    scores = {d: sum(1 / counts[word] for word in present) for d, present in words.items()}
    most = max(scores.values(), default=0.0)
    shares = {document: score / most for document, score in scores.items()} if most else {}
    return {**shares, **{document: 1.0 for document in declared if document in texts}}


def _question_sections(
    snapshot: Snapshot,
    target: Target,
    layout: TargetLayout,
    own: ScopeFilter,
    search: Search,
    room: int,
    about: Mapping[str, float],
    without: frozenset[str],
) -> list[Block]:
    """Sections that answer the layout's questions, each question in turn, except those in
    `without`."""
    repeats = Repeats()
    per_question: list[list[Block]] = []
    largest = min(max(room // 3, min(room, LEAST_SECTION)), load_layout().largest_section)
    for _, query in layout.questions:
        ranked = search(query, own)
        offered = section_blocks(
            snapshot,
            ranked,
            own,
            "section",
            own=target.chips,
            largest=largest,
            excluded=without,
            prefer=about,
            most=2 * QUESTION_SECTIONS,
        )
        per_question.append([block for block in offered if repeats.is_new(block.text)])
    chosen: list[Block] = []
    for turn in range(QUESTION_SECTIONS):
        for blocks in per_question:
            if turn < len(blocks) and blocks[turn].tokens <= room:
                chosen.append(blocks[turn])
                room -= blocks[turn].tokens
    return chosen


# -- sample kernels


def _samples(snapshot: Snapshot, target: Target) -> list[Sample]:
    """The target's samples, the most useful first: the same kind of operator, kin, accepted by the
    toolchain, correct kernels of a run; then the shorter ones."""
    stored = _stored(snapshot, target)
    operators = load_operators()
    kinds = operators.of(target.op).kinds
    by_code: dict[str, Sample] = {}
    for sample in stored:
        by_code.setdefault(_plain(sample.code), sample)

    def place(sample: Sample) -> tuple[object, ...]:
        traits = operators.of_title(sample.operator, sample.title, sample.shapes)
        relation = operators.relation(kinds[0], traits.kinds) if kinds else 0.0
        same = sample.operator == target.op if target.op else False
        quality = sample_rows.STATUSES.index(sample.status)
        stated = sample.language == target.language
        own = target.hardware.id in sample.hardware
        titles = f"{sample.title} {sample.document_title}"
        faulty = sample.status == "refused" or _FAULTY.search(titles) is not None
        return (faulty, not same, -relation, -quality, not own, not stated)

    return sorted(by_code.values(), key=lambda s: (place(s), len(s.code), s.id))


def _stored(snapshot: Snapshot, target: Target) -> list[Sample]:
    """The stored kernels that may be in the language."""
    return [
        sample
        for sample in snapshot.kernels(target.lineage, target.access_scope)
        if load_layout().may_be(sample.language, target.language)
        and (sample.run_id is None or sample.run_id != target.run)
    ]


def sample_blocks(samples: Sequence[Sample], target: Target, count: int, room: int) -> list[Block]:
    """At most `count` complete kernels in `room` tokens, under a heading, including the sample of
    hardware.toml."""
    head = plain("sample", "samples", "## Whole kernels in this language")
    blocks: list[Block] = []
    left = room - head.tokens
    stated = _plain(target.toolchain_sample)
    same = [s for s in samples if stated and _one_in_other(_plain(s.code), stated)]
    first = [_sample(s, target) for s in same[:1]] or _stated_sample(target)
    for block in [*first, *(_sample(s, target) for s in samples if s not in same)]:
        if len(blocks) == count:
            break
        if block.tokens <= left and not any(_is_near(block.text, b.text) for b in blocks):
            blocks.append(block)
            left -= block.tokens
    return [head, *blocks] if blocks else []


def _is_near(code: str, other: str) -> bool:
    """Whether most lines of two kernels are the same: versions of one example."""
    one, two = ({line for line in t.splitlines() if line.strip()} for t in (code, other))
    return len(one & two) > NEAR * max(len(one), len(two))


def _stated_sample(target: Target) -> list[Block]:
    code = target.toolchain_sample
    if not code:
        return []
    source = f"hardware.toml of {target.toolchain_of}, sample"
    text = f"```{target.language}\n{code.strip()}\n```"
    return [fenced("sample", "stated-sample", source, (target.hardware.id,), text)]


def _sample(sample: Sample, target: Target) -> Block:
    about = [f"operator {sample.operator}"] if sample.operator else []
    about += [f"arguments {', '.join(sample.shapes)}"] if sample.shapes else []
    evidence = sample.evidence or {"untried": ""}.get(sample.status, sample.status)
    about += [evidence] if evidence else []
    where = " > ".join(below_title(sample.path[-2:], sample.document_title or ""))
    source = (
        f"{sample.document_title} (v{sample.version})" + (f", {where}" if where else "")
        if sample.document_id
        else f"run {sample.run_id}, {sample.title}"
    )
    head = f"{sample.title}: {'; '.join(about)}" if about else sample.title
    text = f"{head}\n```{sample.language or target.language}\n{sample.code.rstrip()}\n```"
    block = fenced("sample", sample.id, source, sample.hardware, text)
    sections = (sample.section_id,) if sample.section_id else ()
    return replace(block, sections=sections)
