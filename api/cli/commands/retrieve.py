"""`kernlore retrieve` and `kernlore outcome`: ask, and report the outcome of an answer."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.command import AsJson, DataDir, Url, command
from api.cli.output import Json, in_commands, note, pairs, shortened, show
from api.cli.target import CommandTarget, open_target
from api.operations import hardware as chips
from api.operations import retrieve as asking
from kb.answers import ANSWER_FIELDS, KNOWLEDGE_LOADING
from kb.errors import InvalidRequest
from kb.hardware.facts import readable
from kb.plain import Doc
from kb.tokens import below_title
from kb.validity import versions_in
from retrieval.compose.moves import move_in_words
from retrieval.pasted import with_text
from retrieval.profiles.nsight import SQLITE, summary_of_database
from retrieval.request import help_of

LOADING_SECONDS = 100.0  # the longest wait for the built-in knowledge of a new service
TEXT_SHOWN = 240  # characters of an excerpt in the list
# One word with a slash or with the suffix of a log, a report or code; `tl.dot` is a question.
_FILE_NAME = re.compile(
    r"\S*[/\\]\S*|\S+\.(?:log|txt|out|err|csv|tsv|jsonl?|xml|ya?ml|toml|html?|md|rst|pdf|(?:ncu|nsys)-rep"
    r"|sqlite3?|db|prof|trace|pb|gz|zip|py|cuh?|c|cc|cpp|cxx|hp?p?|hip|cl|metal|rs|ll|mlir|ptx|sass|s)"
)
FIRST_SHOWN = 800  # of each of the first three


@command()
def retrieve(
    text: Annotated[
        str | None,
        typer.Argument(
            help="A question; or a file (-: standard input) with a log, a profile, metrics or code,"
            " whose kind is recognised."
        ),
    ] = None,
    signal: Annotated[
        list[str] | None,
        Doc("Id of a signal, see `kernlore signals`; repeat for more, the main one first."),
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", "--question", "--q", "-q", help=help_of("query"))
    ] = None,
    log: Annotated[
        str | None, Doc("File with a compiler or run-time log; -: standard input.")
    ] = None,
    metrics: Annotated[
        list[str] | None, Doc("Metric of a profiler: NAME=VALUE or a JSON file; repeat for more.")
    ] = None,
    profile: Annotated[str | None, Doc("File with a profiler's output; -: standard input.")] = None,
    hardware: Annotated[
        str | None,
        Doc(
            "Hardware id, see `kernlore hardware list`; `auto`: this machine, with its tools'"
            " versions."
        ),
    ] = None,
    op: Annotated[str | None, Doc(help_of("op"))] = None,
    language: Annotated[str | None, Doc(help_of("language"))] = None,
    dtype: Annotated[str | None, Doc(help_of("dtype"))] = None,
    problem: Annotated[
        list[str] | None, Doc(f"NAME=VALUE; repeat for more. {help_of('problem')}")
    ] = None,
    versions: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOOL=VERSION",
            help=f"Or a file, or `auto` for those of this machine; repeat for more."
            f" {help_of('versions')}",
        ),
    ] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help=help_of("k"))] = None,
    max_tokens: Annotated[int | None, Doc(help_of("max_tokens"))] = None,
    category: Annotated[list[str] | None, Doc(help_of("categories"))] = None,
    skill_state: Annotated[list[str] | None, Doc(help_of("skill_states"))] = None,
    role: Annotated[list[str] | None, Doc(help_of("roles"))] = None,
    fields: Annotated[list[str] | None, Doc(help_of("fields"))] = None,
    run_id: Annotated[str | None, Doc(help_of("run_id"))] = None,
    node_id: Annotated[str | None, Doc(help_of("node_id"))] = None,
    task: Annotated[str | None, Doc(help_of("task"))] = None,
    draft: Annotated[str | None, Doc("File with the source of the kernel in hand.")] = None,
    exclude: Annotated[list[str] | None, Doc(help_of("exclude"))] = None,
    reader: Annotated[str | None, Doc(help_of("reader"))] = None,
    context: Annotated[bool, Doc("Print only the text for a prompt.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Ask about a log, a profile, code, a question or a signal. The answer cites its
    sources."""
    signals = signal or []
    given: dict[str, Any] = {
        "signal": signals[0] if signals else None,
        "signals": signals[1:],
        "query": query,
        "log": None if log is None else read_log(log),
        "metrics": read_metrics(metrics) if metrics else None,
        "profile": None if profile is None else read_profile_file(profile),
        "hardware": hardware,
        "op": op,
        "language": language,
        "dtype": dtype,
        "problem": read_metrics(problem, "--problem") if problem else None,
        "k": k,
        "max_tokens": max_tokens,
        "categories": category,
        "skill_states": skill_state,
        "roles": role,
        "fields": fields,
        "run_id": run_id,
        "node_id": node_id,
        "task": task,
        "draft": None if draft is None else read_log(draft),
        "exclude": exclude,
        "reader": reader,
        "versions": _read_versions(versions or [], hardware),
    }
    request: Any = {name: value for name, value in given.items() if value not in (None, [])}
    if text is not None:
        request = _with_text(request, text)
    if not as_json:  # the list shows the texts of excerpts
        request.setdefault("fields", ["context"] if context else list(ANSWER_FIELDS))
    with open_target(data_dir, url) as target:
        target.ensure_documents()
        if hardware == AUTO:
            request["hardware"] = _this_machine(target)
        answer = target.call(asking.retrieve, request)
        deadline = time.monotonic() + LOADING_SECONDS
        while KNOWLEDGE_LOADING in (answer.get("hints") or ()) and time.monotonic() < deadline:
            note("the service loads its built-in knowledge; waiting for it")
            time.sleep(LOADING_SECONDS / 20)
            answer = target.call(asking.retrieve, request)
    show(answer, as_json, (lambda a: str(a["context"])) if context else _answer_text)


@command(text=lambda stored: f"recorded for {stored['retrieval_id']}")
def outcome(
    target: CommandTarget,
    retrieval_id: Annotated[str, typer.Argument(help="The retrieval_id of an answer.")],
    used: Annotated[
        list[str] | None, Doc("Id of an excerpt, skill or move acted on; repeat.")
    ] = None,
    correct: Annotated[
        bool | None, typer.Option("--correct/--incorrect", help="Whether the kernel was correct.")
    ] = None,
    speedup: Annotated[float | None, Doc("Speed-up of the kernel over the reference.")] = None,
    baseline_speedup: Annotated[
        float | None, Doc("Speed-up over the reference of the kernel that was changed.")
    ] = None,
) -> Json:
    """Report whether an answer led to a correct and faster kernel.

    Once for each kernel: every report counts, also a second one for the same answer.
    """
    return target.call(
        asking.report_outcome,
        retrieval_id,
        used=used or [],
        correct=correct,
        speedup=speedup,
        baseline_speedup=baseline_speedup,
    )


AUTO = "auto"


def _read_versions(entries: Sequence[str], hardware: str | None) -> dict[str, str] | None:
    """The versions of the options: pairs, texts of files, and those of this machine."""
    from kb.hardware.detection import detect_versions

    found: dict[str, str] = {}
    if AUTO in entries or hardware == AUTO:
        found |= detect_versions()
    for entry in entries:
        if entry != AUTO:
            if entry != "-" and not _is_file(entry):
                _refuse_missing_file(entry, "Give TOOL=VERSION or the path of a file.")
            found |= versions_in(read_log(entry) if _is_file(entry) or entry == "-" else entry)
    return found or None


def _this_machine(target: CommandTarget) -> str:
    """The hardware id of the first device of this machine."""
    from kb.hardware.detection import detect_devices
    from kb.hardware.lineage import folded_name

    rows = target.call(chips.list_hardware)["hardware"]
    ids = {folded_name(name): row["id"] for row in rows for name in (row["id"], *row["aliases"])}
    devices = detect_devices(lambda name: ids.get(folded_name(name))).devices
    known = [device.hardware_id_hint for device in devices if device.hardware_id_hint]
    if not known:
        raise InvalidRequest(
            "no device of this machine is known hardware",
            hint="`kernlore hardware detect` lists its devices; name the hardware.",
        )
    return known[0]


def _with_text(request: dict[str, Any], text: str) -> dict[str, Any]:
    """The request with a text, or with the text of the file that it names."""
    if text == "-" or _is_file(text):
        text = read_profile_file(text)
    else:
        _refuse_missing_file(text, f"To ask about these words: --query {text!r}.")
    return with_text(request, text)


def _refuse_missing_file(name: str, hint: str) -> None:
    if _FILE_NAME.fullmatch(name):
        raise InvalidRequest(f"there is no file {name}", hint=hint)


def _is_file(name: str) -> bool:
    with suppress(OSError, ValueError):  # a question is no path
        return Path(name).is_file()
    return False


def read_log(name: str) -> str:
    """The text of a file or, for `-`, of standard input; bytes other than UTF-8 are replaced."""
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return data.decode("utf-8", "replace")


def read_profile_file(name: str) -> str:
    """The text of a profile; an exported database of Nsight Systems as the summary of its kernels.
    Raises InvalidRequest for another database."""
    path = Path(name)
    if name == "-" or not path.is_file() or not path.read_bytes()[:16].startswith(SQLITE):
        return read_log(name)
    try:
        return summary_of_database(path)
    except sqlite3.Error as error:
        raise InvalidRequest(
            f"{name} is no export of Nsight Systems: {error}",
            hint="Export it with `nsys export --type sqlite`, or send the text of `nsys stats`.",
        ) from error


def read_metrics(entries: Sequence[str], option: str = "--metrics") -> dict[str, Any]:
    """NAME=VALUE pairs and JSON files as one mapping. Raises InvalidRequest, which names `option`,
    for anything else."""
    values: dict[str, Any] = {}
    for entry in entries:
        path = Path(entry)
        name, equals, value = entry.rpartition("=")
        if path.is_file():
            values |= _metrics_of_file(path)
        elif equals and name:
            values[name.strip()] = _number(value.strip())
        else:
            raise InvalidRequest(
                f"{option} {entry!r} is neither a file nor NAME=VALUE",
                hint='Give a JSON file {"name": value, ...}, or dram__throughput.avg=91.5.',
            )
    return values


def _metrics_of_file(path: Path) -> Mapping[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidRequest(
            f"{path} is not JSON: {error}", hint='Give one object: {"name": value, ...}.'
        ) from error
    if not isinstance(loaded, dict):
        raise InvalidRequest(
            f"{path} holds no JSON object", hint='Give one object: {"name": value, ...}.'
        )
    return loaded


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _answer_text(answer: Json) -> str:
    """An answer for people: the diagnosis, then knowledge about it, each part with its source."""
    parts = [
        _diagnosis(answer),
        _evidence(answer),
        *_profile(answer),
        *_hot_lines(answer),
        *_log_lines(answer),
        *_unknown(answer),
        _facts(answer),
    ]
    parts += [_move(move) for move in answer.get("moves") or ()]
    parts += [
        f"skill {skill['name']} ({skill['tier']}): {skill['summary']}"
        for skill in answer.get("skills") or ()
    ]
    parts += [_excerpt(n, e) for n, e in enumerate(answer["excerpts"], 1)]
    parts += [_uplift(row) for row in answer.get("uplift") or ()]
    parts += [f"hint: {in_commands(hint)}" for hint in answer.get("hints") or ()]
    parts.append(f"retrieval {answer['retrieval_id']}; `--context` prints the text for a prompt")
    return "\n\n".join(part for part in parts if part)


def _diagnosis(answer: Json) -> str:
    diagnosis = answer.get("diagnosis") or {}
    hardware = answer.get("hardware") or {}
    signals = [f"{s['id']} ({s['confidence']})" for s in diagnosis.get("signals") or ()]
    return pairs(
        {
            "signals": signals or "none",
            "hardware": " > ".join(hardware.get("lineage") or ()) or "none given",
            "unrecognised": diagnosis.get("unrecognised"),
            "measure next": diagnosis.get("measure_next"),
        }
    )


def _evidence(answer: Json) -> str:
    """The measured values from which the signals follow."""
    lines = []
    for signal in (answer.get("diagnosis") or {}).get("signals") or ():
        values: dict[str, str] = {}  # the first rule of each
        for item in signal["evidence"]:
            if isinstance(item.get("value"), int | float) and item.get("test"):
                shown = f"{item['name']} is {item['value']:g} (rule: {item['test']})"
                values.setdefault(item["name"], shown)
        lines += [f"{signal['id']}: {', '.join(values.values())}"] if values else []
    return "\n".join(lines)


def _facts(answer: Json) -> str:
    """The facts of the chip that the question names, with their sources."""
    rows = [
        f"{fact['key']} = {fact['value']}  ({fact['kind']}; {fact['source']})"
        for fact in answer.get("facts") or ()
    ]
    return "\n".join(rows)


def _profile(answer: Json) -> list[str]:
    """Metrics read from the profiler's output."""
    read = answer.get("profile")
    if not read:
        return []
    of = f" of {read['kernel']}" if read["kernel"] else ""
    unread = f", {read['unread']} counters are unknown" if read["unread"] else ""
    head = f"profile of {read['kind']}: {len(read['metrics'])} metrics{of}{unread}"
    return ["\n    ".join([head, *read["notes"]])]


def _hot_lines(answer: Json) -> list[str]:
    """The lines that take the time of a kernel, with their source."""
    groups = (answer.get("diagnosis") or {}).get("lines") or ()
    return ["\n    ".join([group["finding"], *group["source"]]) for group in groups]


def _log_lines(answer: Json) -> list[str]:
    """The lines of the log that are known errors, each with its title and remedy."""
    signatures = (answer.get("diagnosis") or {}).get("signatures") or ()
    shown: dict[tuple[str, str], Json] = {}  # the first line of each
    for known in signatures:
        shown.setdefault((known["title"], known["remedy"]), known)
    return [
        f"log line {known['line_number']}: {known['line'].strip()}\n"
        f"    {known['title']}" + (f": {known['remedy']}" if known["remedy"] else "")
        for known in shown.values()
    ]


def _unknown(answer: Json) -> list[str]:
    """Names of the draft that the chip's documents do not define."""
    return [
        f"unknown name {name['name']} (line {name['line']} of the draft)"
        + (f"; near it: {', '.join(name['nearest'])}" if name["nearest"] else "")
        for name in answer.get("unknown_names") or ()
    ]


def _move(move: Json) -> str:
    """A change with its reason, its bound, and the values that it depends on."""
    lines = [f"move: {move_in_words(move['name'], move['change'])}", move["why"]]
    if (bound := move.get("limit") or {}).get("value") is not None:
        fact = bound["fact"].removeprefix("x_").replace("_", " ")
        lines.append(f"limited by {fact}: {readable(bound['value'], bound['unit'])}")
    if not move["applies"]:
        lines.append(f"applies depending on {', '.join(move['missing'])}, which was not given")
    return "\n    ".join([*lines, move["id"]])


def _uplift(row: Json) -> str:
    """A measured gain of a context."""
    placebo = f", {row['placebo']:g} with a placebo" if row.get("placebo") is not None else ""
    return (
        f"measured for a {row['reader']} reader, {row['operator']} in {row['language']} on"
        f" {row['chip']}: {row['with_context']:g} with a context, {row['without']:g} without"
        f"{placebo} ({row['unit']}; n = {row['n']}, {row['date']})"
    )


def _excerpt(rank: int, excerpt: Json) -> str:
    page = excerpt.get("page") or {}
    label = page.get("label") or (page["index"] + 1 if page.get("index") is not None else None)
    about = ",".join(excerpt.get("hardware") or ()) or "any"
    place = ", ".join(
        part
        for part in (
            excerpt["document"]["title"],
            " > ".join(below_title(excerpt["section"].split(" > "), excerpt["document"]["title"])),
            f"p. {label}" if label else "",
        )
        if part
    )
    head = f"{rank:2}. [{excerpt['category']} {about}] {place}  {excerpt['score']:.3f}"
    mark = f"\n    [{excerpt['mark']}]" if excerpt.get("mark") else ""
    length = FIRST_SHOWN if rank <= 3 else TEXT_SHOWN
    return f"{head}{mark}\n    {shortened(excerpt['text'], length)}\n    {excerpt['id']}"
