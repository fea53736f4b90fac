"""Statements of our sections that a model knows without a context: the questions, and the marks.

A *question* is a sentence of a section with one name or number blanked; an *idiom* is a piece of
code of a section, requested by its heading. The model sees the titles and nothing else. A statement
that every vote answers correctly is marked as common for its class of readers in
`retrieval/data/common.json`, and left out of contexts for that class; nothing leaves the store.

    python -m benchmarks.knowledge.common --api-base URL --model NAME --reader strong
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import httpx

from benchmarks.report import ended, say, table, write_result
from ingestion.builtin import front_matter
from kb.errors import InvalidRequest, Unavailable
from retrieval.readers import COMMON_FILE, CommonMark, load_marks
from retrieval.request import READERS

ROOT = Path(__file__).resolve().parents[2]
KNOWLEDGE = ROOT / "hw_manuals"
TITLE = "What a model knows of the built-in sections"
WORDS = (8, 60)  # of a sentence used as a question
NEAR = 0.02  # relative difference of two numbers that count as equal
ENOUGH_NAMES = 0.8  # share of an idiom's names that an answer has to contain
LEAST_NAMES = 3  # of an idiom
SECONDS = 900.0  # of one call
BLANK = "____"
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_NAME = re.compile(r"`([^`\n]{3,60})`")
_NUMBER = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?![\w,.]*\w)")
_IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*(?:[._]\w+)+\b")

Kind = Literal["question", "idiom"]


@dataclass(frozen=True)
class Question:
    """A statement of a section as a question. `right` is the blanked text; for an idiom, the names
    that its code has, one per line.
    """

    kind: Kind
    document: str
    section: str
    statement: str
    asked: str
    right: str

    def is_right(self, answer: str) -> bool:
        """Whether an answer has the blanked name or number, or enough names of the idiom."""
        if self.kind == "question":
            return _same(self.right, answer)
        names = self.right.splitlines()
        return sum(name in answer for name in names) >= ENOUGH_NAMES * len(names)


def _same(right: str, answer: str) -> bool:
    wanted, given = _plain(right), _plain(answer)
    if wanted == given:
        return True
    try:
        return abs(float(given.split()[0]) - float(wanted)) <= NEAR * abs(float(wanted))
    except (ValueError, IndexError):
        return False


def _plain(text: str) -> str:
    return " ".join(text.replace(",", "").replace("`", "").split()).strip(".;: ").lower()


# -- the questions


def sections_of(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(document, section, text) of every section of the documents in a folder of knowledge."""
    for pattern in ("constraints/*.md", "guidance/*.md", "hardware/*/*.md"):
        for path in sorted(folder.glob(pattern)):
            text = path.read_text(encoding="utf-8")
            front = front_matter(text, str(path))
            if front.get("reference"):
                continue
            body = text[text.index("\n---\n") + 5 :]
            for part in re.split(r"^## ", body, flags=re.M)[1:]:
                heading, _, content = part.partition("\n")
                yield str(front["title"]), heading.strip(), content


def questions_of(document: str, section: str, text: str) -> list[Question]:
    """The questions about one section: one for each sentence with a name or number, and one for
    each piece of code.
    """
    questions = [
        _idiom(document, section, language, code) for language, code in _FENCE.findall(text)
    ]
    prose = _FENCE.sub("", text)
    lines = [line for line in prose.splitlines() if not line.startswith("|")]
    for sentence in _SENTENCE_ENDS.split(" ".join(" ".join(lines).split())):
        questions.append(_blanked(document, section, sentence))
    return [question for question in questions if question is not None]


def _idiom(document: str, section: str, language: str, code: str) -> Question | None:
    names = list(dict.fromkeys(_IDENTIFIER.findall(code)))
    if len(names) < LEAST_NAMES:
        return None
    asked = f"Write the {language} code: {section}. At most {len(code.splitlines()) + 4} lines."
    statement = f"```{language} {code} ```"
    return Question("idiom", document, section, statement, asked, "\n".join(names))


def _blanked(document: str, section: str, sentence: str) -> Question | None:
    """The last name or number of a sentence, which the words before it lead to, blanked."""
    low, high = WORDS
    found = [*_NAME.finditer(sentence), *_NUMBER.finditer(sentence)]
    if not found or not low <= len(sentence.split()) <= high:
        return None
    last = max(found, key=lambda match: match.start())
    right = last[1] if last.re is _NAME else last[0]
    if not _plain(right):
        return None
    asked = sentence.replace(last[0], BLANK)
    return Question("question", document, section, sentence, asked, right)


def drawn(every: Sequence[Question], questions: int, idioms: int, seed: int) -> list[Question]:
    """So many questions and idioms, drawn evenly."""
    chance = random.Random(seed)
    chosen: list[Question] = []
    for kind, count in (("question", questions), ("idiom", idioms)):
        pool = [question for question in every if question.kind == kind]
        chosen += chance.sample(pool, min(count, len(pool)))
    return chosen


# -- asking


@dataclass(frozen=True)
class Model:
    """A model behind an OpenAI-compatible address, such as `http://host/v1`."""

    base: str
    name: str

    def answers(self, questions: Sequence[Question]) -> list[str]:
        """The answers to some questions in one call, "" for a missing one. Raises Unavailable."""
        listed = "\n\n".join(
            f"{number}. [{q.document}, {q.section}] {q.asked}"
            for number, q in enumerate(questions, start=1)
        )
        content = (
            f"Answer from what you know. In a sentence with {BLANK}, give only what the blank"
            " stands for; otherwise write the code. If you do not know, answer with an empty"
            " string. Reply with one JSON object of strings by number and nothing else."
            f"\n\n{listed}"
        )
        key = os.environ.get("OPENAI_API_KEY", "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body = {"model": self.name, "messages": [{"role": "user", "content": content}]}
        try:
            reply = httpx.post(
                f"{self.base.rstrip('/')}/chat/completions",
                json=body,
                headers=headers,
                timeout=SECONDS,
            )
            reply.raise_for_status()
            text = str(reply.json()["choices"][0]["message"]["content"])
        except (httpx.HTTPError, LookupError, ValueError) as error:
            raise Unavailable(
                f"{self.name} did not answer: {error}", hint="Check --api-base and --model."
            ) from error
        return _read(text, len(questions))


def _read(text: str, count: int) -> list[str]:
    """The strings of the JSON object in a reply, by number."""
    try:
        found = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        return [""] * count
    return [str(found.get(str(number), "")) for number in range(1, count + 1)]


def known(model: Model, questions: Sequence[Question], votes: int, batch: int) -> list[Question]:
    """The questions that the model answers right in each of `votes` calls."""
    right = list(questions)
    for vote in range(votes):
        still: list[Question] = []
        for start in range(0, len(right), batch):
            part = right[start : start + batch]
            answers = model.answers(part)
            still += [q for q, answer in zip(part, answers, strict=True) if q.is_right(answer)]
            say(f"vote {vote + 1}: {start + len(part)} of {len(right)} asked, {len(still)} right")
        right = still
    return right


# -- the marks


def marks_of(
    right: Sequence[Question], every: Iterable[Question], model: str, reader: str, date: str
) -> list[CommonMark]:
    """A mark for each question, and one for each section with all statements marked."""
    statements: dict[tuple[str, str], set[str]] = defaultdict(set)
    for question in every:
        statements[question.document, question.section].add(question.statement)
    marks = [
        CommonMark(q.document, q.section, q.statement, reader, model, date, q.asked) for q in right
    ]
    marked: dict[tuple[str, str], set[str]] = defaultdict(set)
    for mark in marks:
        marked[mark.document, mark.section].add(mark.statement)
    whole = [place for place, own in marked.items() if own == statements[place]]
    return [*marks, *(CommonMark(*place, "", reader, model, date) for place in whole)]


def write_marks(path: Path, marks: Sequence[CommonMark], asked: Sequence[Question]) -> None:
    """Write marks over those of the same questions for the same class of readers, one a line."""
    readers = {mark.reader for mark in marks}
    again = {(q.document, q.section, q.statement) for q in asked}
    again |= {(q.document, q.section, "") for q in asked}
    kept = [
        mark
        for mark in (load_marks() if path == COMMON_FILE else [])
        if mark.reader not in readers or (mark.document, mark.section, mark.statement) not in again
    ]
    rows = sorted((*kept, *marks), key=lambda m: (m.document, m.section, m.statement, m.reader))
    lines = ",\n".join(json.dumps(asdict(mark), ensure_ascii=False) for mark in rows)
    path.write_text(f"[\n{lines}\n]\n" if lines else "[]\n", encoding="utf-8")


def _counts(asked: Sequence[Question], right: Sequence[Question]) -> list[list[object]]:
    correct = set(right)
    rows: Mapping[str, list[Question]] = {
        kind: [question for question in asked if question.kind == kind]
        for kind in ("question", "idiom")
    }
    return [
        [kind, len(questions), sum(question in correct for question in questions)]
        for kind, questions in rows.items()
    ]


def run(options: argparse.Namespace) -> None:
    if options.reader not in READERS:
        raise InvalidRequest(
            f"reader is {options.reader!r}", hint=f"Use one of {', '.join(READERS)}."
        )
    every = [q for section in sections_of(options.folder) for q in questions_of(*section)]
    asked = drawn(every, options.questions, options.idioms, options.seed)
    say(f"{len(every)} questions can be asked, {len(asked)} are")
    model = Model(options.api_base, options.model)
    right = known(model, asked, options.votes, options.batch)
    date = datetime.now(UTC).date().isoformat()
    marks = marks_of(right, every, options.model, options.reader, date)
    write_marks(options.output, marks, asked)
    parts: list[Any] = [
        "`python -m benchmarks.knowledge.common --api-base URL --model NAME --reader READER`",
        f"Model {options.model}, seed {options.seed}, {options.votes} votes; {len(marks)} marks in"
        f" {options.output.name}.",
        table(["asked", "n", "right in every vote"], _counts(asked, right)),
    ]
    write_result(options.results, TITLE, parts)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.knowledge.common", description=__doc__
    )
    add = parser.add_argument
    add("--api-base", required=True, help="Address of an OpenAI-compatible server, with /v1.")
    add("--model", required=True, help="Name of the model, as the server knows it.")
    add("--reader", required=True, help=f"Its class: {' or '.join(READERS)}.")
    add("--questions", type=int, default=300, help="Sentences to ask about.")
    add("--idioms", type=int, default=60, help="Pieces of code to ask for.")
    add("--votes", type=int, default=2, help="Calls that all have to be right.")
    add("--batch", type=int, default=15, help="Questions in one call.")
    add("--seed", type=int, default=0)
    add("--folder", type=Path, default=KNOWLEDGE, help="Folder of knowledge to draw from.")
    add("--output", type=Path, default=COMMON_FILE, help="File of the marks.")
    add("--results", type=Path, help="Also write the counts as Markdown.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
