"""`python -m api.operations` generates kb/routes.json and parts of retrieval/client.py from the
declarations.

The client must not import this repository, and its users want types, so its records, and a method
for each entry of `METHODS`, are written into `retrieval/client.py` between marks.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

from api.operations import Operation, operations
from api.operations.documents import list_documents, list_jobs, show_job
from api.operations.hardware import list_facts, list_hardware, show_coverage
from api.operations.knowledge import list_signals, show_knowledge
from api.operations.retrieve import report_outcome, retrieve
from ingestion.progress import DocumentJob, JobCounts, JobDocument, JobError, JobPage
from ingestion.uploads import Submitted
from kb import answers
from kb.routes import FILE
from kb.validity import Validity
from retrieval.request import request_fields


def generated_files() -> Mapping[Path, str]:
    """The text of each file with generated parts."""
    every = [either for o in operations() for either in (o, o.form) if either is not None]
    rows = (f"  {json.dumps(o.name)}: {json.dumps(route_row(o))}" for o in every)
    return {FILE: "{\n" + ",\n".join(rows) + "\n}\n", CLIENT: client_module()}


def route_row(operation: Operation[Any, Any]) -> dict[str, Any]:
    """A row of kb/routes.json."""
    row = {"method": operation.method, "path": operation.path}
    if operation.whole:
        return {**row, "whole": operation.whole}
    places: dict[str, list[str]] = defaultdict(list)
    for i in operation.inputs:
        if i.place != "path":
            places[i.place].append(i.name)
    return {**row, **places}


# -- the generated parts of the Python client

CLIENT = Path(__file__).resolve().parents[2] / "retrieval" / "client.py"
WIDTH = 100
# Each record before those that contain it, with the fields after the first that must be there.
RECORDS: Mapping[type, tuple[str, ...]] = {
    answers.SignalFinding: (),
    answers.HotLines: (),
    answers.Verdict: (),
    answers.ProfileRead: (),
    answers.Uplift: (),
    answers.NamedFact: (),
    answers.DocumentRef: (),
    Validity: (),
    answers.Excerpt: ("category", "text", "document"),
    answers.Move: (),
    answers.SkillAnswer: (),
    answers.ContextPart: (),
    answers.Answer: ("context",),
    Submitted: ("outcome",),
    JobError: (),
    JobDocument: (),
    DocumentJob: ("state",),
    JobCounts: (),
    JobPage: (),
}
NAMES: Mapping[type, str] = {Submitted: "Upload", DocumentJob: "Job", JobPage: "Jobs"}
OPTIONAL = (answers.Verdict, JobCounts, JobPage)  # no field must be there
WITH_RAW = (answers.Answer, Submitted, DocumentJob, JobPage)
# By the name of the method: the operation, and the record that it returns; "rows" is the list of
# the method's name in the output, "" nothing.
METHODS: Mapping[str, tuple[Operation[Any, Any], str]] = {
    "retrieve": (retrieve, "Answer"),
    "report": (report_outcome, ""),
    "signals": (list_signals, "rows"),
    "hardware": (list_hardware, "rows"),
    "facts": (list_facts, "rows"),
    "coverage": (show_coverage, "Json"),
    "documents": (list_documents, "rows"),
    "knowledge": (show_knowledge, "Json"),
    "job": (show_job, "Job"),
    "jobs": (list_jobs, "Jobs"),
}
# Types of the fields of a request to `retrieve`, by their kind.
KINDS = {
    "text": "str",
    "names": "Sequence[str]",
    "count": "int",
    "metrics": "Mapping[str, SupportsFloat | str]",
    "quantities": "Mapping[str, float | str]",
    "versions": "Mapping[str, str] | str",
    "output": "str | Mapping[str, Any] | Sequence[Any]",
}


def client_module() -> str:
    """The text of retrieval/client.py with its generated parts."""
    text = CLIENT.read_text(encoding="utf-8")
    records = "".join(f"\n\n{_record(record)}" for record in RECORDS) + "\n\n"
    methods = "".join(f"\n{_method(name, *entry)}" for name, entry in METHODS.items()) + "\n"
    return _between(_between(text, "records", records), "methods", methods)


def _between(text: str, part: str, generated: str) -> str:
    """The text with everything between the marks of a part replaced."""
    pattern = rf"( *# -- generated {part}: [^\n]*\n).*?( *# -- end of generated {part}\n)"
    found = re.search(pattern, text, re.S)
    assert found is not None, part
    return text[: found.end(1)] + generated + text[found.start(2) :]


# -- records


def _record(record: type) -> str:
    needed = set() if record in OPTIONAL else {fields(record)[0].name, *RECORDS[record]}
    hints = get_type_hints(record, include_extras=False)
    lines = ["@dataclass(frozen=True)", f"class {NAMES.get(record, record.__name__)}:"]
    lines += [f'    """{record.__doc__}"""', ""]
    ordered = sorted((part.name for part in fields(record)), key=lambda name: name not in needed)
    for name in ordered:
        spelled, default = _spelled(hints[name])
        lines.append(f"    {name}: {spelled}" + ("" if name in needed else f" = {default}"))
    if record in WITH_RAW:
        lines.append("    raw: Json = field(default_factory=dict, repr=False, compare=False)")
    for value in vars(record).values():
        if isinstance(value, property) and value.fget is not None:
            lines += ["", inspect.getsource(value.fget).rstrip()]
    return "\n".join(lines) + "\n"


def _spelled(hint: Any) -> tuple[str, str]:
    """A type as the client writes it, and the value where an older service leaves the field out."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _spelled(parts[0])
    if isinstance(hint, NewType):
        return _spelled(hint.__supertype__)
    if origin in (Union, UnionType):
        spelled = " | ".join("None" if p is NoneType else _spelled(p)[0] for p in parts)
        return spelled, "None"
    if origin is Literal:
        return "str", '""'
    if origin in (tuple, list, Sequence):
        return f"tuple[{_spelled(parts[0])[0]}, ...]", "()"
    if origin is Mapping:
        value = "Any" if parts[1] is Any else _spelled(parts[1])[0]
        return "Json" if value == "Any" else f"Mapping[str, {value}]", "field(default_factory=dict)"
    if is_dataclass(hint) and isinstance(hint, type):
        name = NAMES.get(hint, hint.__name__)
        return name, f"field(default_factory={name})"
    return hint.__name__, {str: '""', int: "0", float: "0.0", bool: "False"}[hint]


# -- methods


def _method(name: str, operation: Operation[Any, Any], returned: str) -> str:
    path = [i.name for i in operation.inputs if i.place == "path"]
    more = dict(_parameters(operation))
    result = {"rows": "list[Json]", "": "None"}.get(returned, returned)
    parameters = ["self", *(f"{parameter}: str" for parameter in path)]
    keywords = [f"{n}: {kind} | None = None" for n, (kind, _) in more.items()]
    parameters += ["*", *keywords] if len(keywords) > bool(not path) else keywords
    head = f"def {name}({', '.join(parameters)}) -> {result}:"
    if len(keywords) > 1:
        head = "\n".join([f"def {name}(", *(f"    {p}," for p in parameters), f") -> {result}:"])
    lines = [*head.splitlines(), *_documentation(operation, more), *_body(operation, more)]
    lines.append({"rows": f'return _rows(body, "{name}")', "": ""}.get(returned, ""))
    if returned not in ("rows", ""):
        lines[-1] = (
            "return _mapping(body)" if returned == "Json" else f"return _record({returned}, body)"
        )
    if not returned:
        lines.pop()
        lines[-1] = lines[-1].removeprefix("body = ")
    first = len(head.splitlines())
    indented = [f"    {line}" if n < first else f"        {line}" for n, line in enumerate(lines)]
    return "\n".join(line.rstrip() for line in indented) + "\n"


def _parameters(operation: Operation[Any, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    """(name, (type, documentation)) of each parameter that is no part of the path."""
    if operation is retrieve:
        for spec in request_fields():
            yield spec.name, (KINDS[spec.kind], spec.help)
        return
    for i in operation.inputs:
        if i.place != "path":
            yield i.name, (_argument(i.type), i.description)


def _argument(hint: Any) -> str:
    """The type of an argument without None."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _argument(parts[0])
    if origin in (Union, UnionType):
        return " | ".join(_argument(part) for part in parts if part is not NoneType)
    if origin in (tuple, list):
        return "Sequence[str]"
    return "str" if origin is Literal else str(hint.__name__)


def _documentation(
    operation: Operation[Any, Any], more: Mapping[str, tuple[str, str]]
) -> list[str]:
    text = f"{operation.summary}.\n\n{' '.join(operation.description.split())}"
    if operation is retrieve:
        text = f"{operation.summary}, or several. The service supplies defaults."
    described = {name: text for name, (_, text) in more.items() if text}
    wrapped = [line for part in text.split("\n\n") for line in ("", *_wrapped(part))][1:]
    if described:
        wrapped.append("")
        for name, description in described.items():
            wrapped += _wrapped(f"{name}: {' '.join(description.split())}", "    ")
    wrapped[0] = f'"""{wrapped[0]}'
    if len(wrapped) == 1:
        return [f'{wrapped[0]}"""']
    return [*wrapped, '"""']


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH - 12, subsequent_indent=indent, break_on_hyphens=False)


def _body(operation: Operation[Any, Any], more: Mapping[str, tuple[str, str]]) -> list[str]:
    """The lines that send the request."""
    path = re.sub(r"{(\w+)}", r"{_segment(\1)}", operation.path)
    quoted = f'{"f" if "{" in path else ""}"{path}"'
    carried = ""
    lines = []
    if more:
        lists = {n for n, (kind, _) in more.items() if kind.startswith("Sequence")}
        name = "params" if operation.method == "GET" else "json"
        lines = [f"{name} = _sendable_fields("]
        lines += [f"    {n}={f'_listed({n})' if n in lists else n}," for n in more]
        lines.append(")")
        carried = f", {name}={name}"
    return [*lines, f'body = self._call("{operation.method}", {quoted}{carried})']


if __name__ == "__main__":
    for path, text in generated_files().items():
        path.write_text(text, encoding="utf-8")
