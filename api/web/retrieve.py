"""Ask: the answer to a log, a profile, code, metrics, a signal or a question."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from api.http.admission import admitted
from api.http.routes import Parts
from api.operations import hardware
from api.operations.retrieve import retrieve
from api.services import Services
from api.strict_json import load_json
from api.web.pages import SentForm, error_page, form_route, page, page_router, see_other
from kb.answers import ANSWER_FIELDS, Answer
from kb.errors import InvalidRequest, KernloreError
from kb.hardware.lineage import chips_named
from kb.scope import CATEGORIES
from kb.validity import versions_in
from retrieval.compose.moves import move_in_words
from retrieval.diagnose.signals import load_signals
from retrieval.pasted import metrics_of, with_text
from retrieval.request import TASKS
from retrieval.request_body import read_body

MAX_LINK = 8_000  # characters that every proxy lets pass
FIELDS = ("signal", "hardware", "task", "query", "op", "language", "dtype", "log", "metrics")
ASKED = ("text", *FIELDS, "max_tokens", "versions")
MOST_ACTIONS = 3
AROUND = 2  # lines of the pasted text that are shown around a marked one
MOST_LINES = 30  # of the pasted text that are shown
router = page_router("/ui/retrieve")
Text = Annotated[str, Query()]


@router.get("", dependencies=[Depends(admitted, scope="function")])
def ask(request: Request, services: Parts, of: str = "") -> HTMLResponse:
    """The form, and the answer to a given question; `of` is the id of an earlier answer, whose
    request is answered again."""
    given = {name: request.query_params.get(name, "") for name in ASKED}
    if of:
        given |= _earlier(services, of)
    return _answered(request, services, given)


def _earlier(services: Services, retrieval_id: str) -> dict[str, str]:
    """The fields of an earlier request. A profile and a draft are shown as the pasted text."""
    stored = services.retriever.journal.request_of(retrieval_id, access_scope=services.access)
    given = {name: str(stored[name]) for name in FIELDS if stored.get(name) and name != "metrics"}
    if stored.get("metrics"):
        given["metrics"] = json.dumps(stored["metrics"])
    pairs = (stored.get("versions") or {}).items()
    given["versions"] = ", ".join(f"{tool}={version}" for tool, version in pairs)
    text = stored.get("profile") or stored.get("draft") or given.pop("log", "")
    return {**given, "text": text}


@form_route(router, "", retrieve)
def send(request: Request, services: Parts, form: SentForm) -> Response:
    """A short question becomes a link that can be shared; a longer one is answered at once, with a
    link to its stored request."""
    given = {name: form.text(name) for name in ASKED}
    link = urlencode({name: value for name, value in given.items() if value})
    if len(link) <= MAX_LINK:
        return see_other(request, f"/retrieve?{link}#answer")
    return _answered(request, services, given)


def _answered(request: Request, services: Services, given: dict[str, str]) -> HTMLResponse:
    values: dict[str, Any] = {
        "given": given,
        "signals": list(load_signals()),
        "chips": hardware.list_hardware(services).hardware,
        "tasks": TASKS,
        "categories": CATEGORIES,
        "answer": None,
        "named": "",
        "error": None,
        "shareable": request.method == "GET",
    }
    if not any(given.get(name) for name in ("text", "signal", "query", "log", "metrics")):
        return page(request, "retrieve.html", **values)
    try:
        body = _body(given)
        named = _only_chip(services, given)
        about = {"hardware": named} if named else {}
        answer = retrieve(services, read_body({**about, **body, "fields": list(ANSWER_FIELDS)}))
    except KernloreError as error:
        if error.status >= 500:
            return error_page(request, error)
        return page(request, "retrieve.html", error.status, **values | {"error": error})
    base = str(request.base_url).rstrip("/")
    shown = body.get("log") or body.get("profile") or body.get("draft") or ""
    values |= {
        "answer": asdict(answer),
        "changes": {move.id: move_in_words(move.name, move.change) for move in answer.moves},
        "kind": next((kind for kind in KINDS if body.get(kind)), "signal"),
        "named": named,
        "titles": {signal.id: signal.title for signal in load_signals()},
        "evidence": list(_evidence(answer)),
        "hints": list(_advice(answer, named)),
        "actions": list(_actions(answer))[:MOST_ACTIONS],
        "lines": _marked(shown, answer) if isinstance(shown, str) else [],
        "bar": _bar(answer),
        "curl": _curl(base, body),
        "python": _python(base, body),
        "mcp": _mcp(body),
    }
    return page(request, "retrieve.html", **values)


def _only_chip(services: Services, given: Mapping[str, str]) -> str:
    """The one chip that the text names, where the form names none; else ""."""
    if given.get("hardware"):
        return ""
    text = "\n".join(given.get(name, "") for name in ("text", "query", "log"))
    chips = chips_named(text, services.registry.all())
    return next(iter(chips)) if len(chips) == 1 else ""


# The subject of a request, as the page names it.
KINDS = {
    "log": "a log",
    "profile": "a profile",
    "draft": "code",
    "metrics": "metrics",
    "query": "a question",
}


def _body(given: Mapping[str, str]) -> dict[str, Any]:
    """The body of POST /retrieve for the fields of the form."""
    body: dict[str, Any] = {name: value for name, value in given.items() if value}
    if "metrics" in body:
        body["metrics"] = _metrics(body["metrics"])
    if "versions" in body:
        body["versions"] = versions_in(body["versions"])
    if "max_tokens" in body:
        if not given["max_tokens"].isdecimal():
            raise InvalidRequest("max_tokens is no number", hint="Use a whole number, like 4000.")
        body["max_tokens"] = int(given["max_tokens"])
    if text := body.pop("text", ""):
        body = with_text(body, text)
    return body


def _metrics(text: str) -> Any:
    """Metrics as JSON, or as lines of a name and a value."""
    return load_json(text.encode()) if text.lstrip().startswith("{") else metrics_of(text)


# -- the parts of an answer


@dataclass(frozen=True)
class ShownAction:
    """Something to do next: a sentence, its reason, and the document or skill behind it."""

    what: str
    why: str
    link: str = ""
    source: str = ""


def _evidence(answer: Answer) -> Iterator[str]:
    """What the leading signal rests on, in words."""
    for signature in answer.diagnosis.signatures[:1]:
        amounts = signature.get("quantities")
        if amounts:
            unit = amounts.get("unit") or ""
            excess = amounts["needed"] / amounts["limit"] - 1 if amounts["limit"] else 0
            yield (
                f"{amounts['needed']:,.0f} {unit} needed, {amounts['limit']:,.0f} allowed:"
                f" {100 * excess:.0f} % too much"
            )
        yield str(signature["title"])
    for finding in answer.diagnosis.signals[:1]:
        seen: set[str] = set()
        for item in finding.evidence:
            name = str(item.get("raw") or "")
            if not name or " " in name or name == "derived":  # no name of a counter
                name = str(item.get("name") or "")
            if name and name not in seen and "value" in item:
                seen.add(name)
                rule = f" (rule: {item['test']})" if item.get("test") else ""
                yield (
                    f"{name} is {item['value']:g}{rule}"
                    if isinstance(item["value"], int | float)
                    else f"{name} is {item['value']}{rule}"
                )


def _actions(answer: Answer) -> Iterator[ShownAction]:
    """The remedy of the error, what a profile of a whole program shows, then the moves that apply,
    then skills, then undecided moves."""
    for signature in answer.diagnosis.signatures[:1]:
        if signature.get("remedy"):
            what, _, why = str(signature["remedy"]).partition(". ")
            yield ShownAction(what.rstrip(".") + ".", why)
    profile = answer.profile
    notes: tuple[str, ...] = ()
    if profile is not None and (profile.functions or not answer.diagnosis.signals):
        notes = profile.notes  # without a signal, what was read says what to measure or to change
    for finding, _, advice in (note.partition(": ") for note in notes if ": " in note):
        yield ShownAction(
            f"{finding[:1].upper()}{finding[1:]}.", f"{advice[:1].upper()}{advice[1:]}"
        )
    for move in sorted(answer.moves, key=lambda move: move.applies is None):
        if move.applies is None and move.missing:
            continue
        yield ShownAction(move_in_words(move.name, move.change), move.why, *_source(move.source))
    for skill in answer.skills:
        measured = "measured here" if skill.evidence else "not measured here"
        what = skill.name.partition("-")[2].replace("-", " ").capitalize() + "."
        yield ShownAction(what, skill.summary, f"/skills/{skill.name}", f"skill, {measured}")
    for move in answer.moves:
        if move.applies is None and move.missing:
            needed = ", ".join(name.partition(".")[2] or name for name in move.missing)
            why = f"{move.why} Whether it applies depends on {needed}, which was not given."
            yield ShownAction(move_in_words(move.name, move.change), why, *_source(move.source))


def _advice(answer: Answer, named: str) -> Iterator[str]:
    """The hints of the answer in terms of the page, those about the missing chip as one."""
    about_chip = [hint for hint in answer.hints if "Add `hardware`" in hint]
    if named:
        yield f"The text names {named}, so the answer is about it. Choose another chip above."
    elif about_chip:
        said = about_chip[0].partition(" Add `hardware`")[0]
        yield f"{said} Choose the chip above for its own manuals."
    yield from (hint for hint in answer.hints if hint not in about_chip)


def _source(source: Mapping[str, Any]) -> tuple[str, str]:
    link = f"/documents/{source['document_id']}" if source.get("document_id") else ""
    return link, ", ".join(filter(None, (source.get("document"), source.get("section"))))


@dataclass(frozen=True)
class ShownLine:
    """A line of the pasted text; `number` 0 marks omitted lines."""

    number: int
    text: str
    marked: bool = False


def _marked(text: str, answer: Answer) -> list[ShownLine]:
    """The lines of the pasted text that the diagnosis rests on, marked, with those around them."""
    if not text:
        return []
    lines = text.splitlines()
    numbers, names = _places(answer)
    hits = {n for n in numbers if 1 <= n <= len(lines)}
    if names:
        pattern = re.compile("|".join(re.escape(name) for name in sorted(names)))
        hits |= {n for n, line in enumerate(lines, 1) if pattern.search(line)}
    near = {n for hit in hits for n in range(hit - AROUND, hit + AROUND + 1)}
    if not hits:
        near = set(range(1, min(len(lines), 2 * AROUND + 1) + 1))
    shown: list[ShownLine] = []
    last = 0
    for n in sorted(near):
        if not 1 <= n <= len(lines) or len(shown) >= MOST_LINES:
            continue
        if n > last + 1:
            shown.append(ShownLine(0, f"{n - last - 1:,} lines"))
        shown.append(ShownLine(n, lines[n - 1][:400], n in hits))
        last = n
    if last < len(lines):
        shown.append(ShownLine(0, f"{len(lines) - last:,} lines"))
    return shown


def _places(answer: Answer) -> tuple[set[int], set[str]]:
    """Numbers of lines, and names of metrics, in the evidence of the diagnosis."""
    numbers, names = set(), set()
    for item in (e for finding in answer.diagnosis.signals for e in finding.evidence):
        if item.get("line_number"):
            numbers.add(int(item["line_number"]))
        if item.get("raw"):
            names.add(str(item["raw"]))
    numbers |= {int(s["line_number"]) for s in answer.diagnosis.signatures if s.get("line_number")}
    return numbers, names


@dataclass(frozen=True)
class BarPart:
    """A part of the context: where it begins and ends in a bar of 1,000 units."""

    kind: str
    tokens: int
    x: float
    width: float
    tone: int


def _bar(answer: Answer) -> list[BarPart]:
    """The tokens of the context by kind of part, the largest first."""
    tokens: dict[str, int] = {}
    for part in answer.parts:
        tokens[part.kind] = tokens.get(part.kind, 0) + part.tokens
    total = sum(tokens.values())
    parts: list[BarPart] = []
    x = 0.0
    for tone, (kind, count) in enumerate(sorted(tokens.items(), key=lambda item: -item[1])):
        width = 1000 * count / total
        parts.append(BarPart(kind, count, round(x, 1), round(width, 1), tone % 6))
        x += width
    return parts


# -- the same from a program


def _curl(base: str, body: dict[str, Any]) -> str:
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl -s {base}/retrieve -H 'content-type: application/json' \\\n  -d {data}"


def _mcp(body: dict[str, Any]) -> str:
    """The parameters of a `tools/call` request."""
    call = {"name": "retrieve_context", "arguments": body}
    return json.dumps(call, ensure_ascii=False, indent=2)


def _python(base: str, body: dict[str, Any]) -> str:
    return (
        f"import httpx\n\nbody = {body!r}\n"
        f'answer = httpx.post("{base}/retrieve", json=body, timeout=60).raise_for_status().json()\n'
        'print(answer["context"])\n'
    )
