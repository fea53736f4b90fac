"""Whole kernels that ship with a folder of knowledge, as files that compile.

`samples/<hardware id>/` has a `samples.toml`, whose rows give the operator of each file and the
checks that were made. Each kernel becomes a built-in document with a fence.

Compiles nothing (`optimizer.evaluation.sample_checks` does); the checks are stated by the rows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from ingestion.samples.kernels import MAX_KERNEL, entry_of
from ingestion.uploads import FileUpload
from kb.catalog.knowledge.samples import STATUSES, KernelSample, Status
from kb.errors import InvalidKnowledge
from kb.hardware.spec import SampleArgument
from kb.problem_terms import problem_terms
from kb.validity import Checked, Validity, seen_with

ROWS = "samples.toml"
CHECKS = ("nvcc", "triton", "cute-dsl", "g++", "clang", "hipcc", "toolchain", "parse")
SEEN = ("parses", *STATUSES[2:])  # results of checks, in rising order
MAX_LINE = 100
ABOUT_WORDS = (40, 260)
RAN = ("runs", "right")
_CHECKED: Mapping[str, Checked] = {"compiles": "compiled", "runs": "ran", "right": "ran"}
MAX_CELL = 48  # characters of a figure in a table
# The one in C takes a fifth of the time.
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
FRONT = "sample"  # the key of the front matter for the operator and checks of the row


@dataclass(frozen=True)
class CheckMade:
    """One check that was made. `what` is one of SEEN, `where` a device or a target, `note` measured
    figures. `roof` and `library` are figures for tables: the share of the peak that bounds the
    kernel, and its speed relative to a library, such as "1.02 of cuBLAS"."""

    what: str
    toolchain: str
    where: str
    date: date
    note: str = ""
    roof: str = ""
    library: str = ""

    def sentence(self) -> str:
        """The check in words."""
        note = f": {self.note}" if self.note else ""
        return f"{self.what} ({self.toolchain}, {self.where}, {self.date.isoformat()}){note}"

    def validities(self) -> tuple[Validity, ...]:
        """The versions of the toolchain with which the kernel was seen to compile or run."""
        checked = _CHECKED.get(self.what)
        if checked is None:
            return ()
        date, target = self.date.isoformat(), self.where.partition(",")[0]
        seen = seen_with(self.toolchain, checked=checked, date=date, target=target)
        compilers = tuple(validity for validity in seen if validity.tool != "torch")
        return compilers or seen  # PyTorch computed the reference


@dataclass(frozen=True)
class KernelCall:
    """The arguments to compile a kernel of a Python file without a device: types and constants by
    name, options of the compiler, or `arguments` in order."""

    kernel: str
    signature: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShippedSample:
    """A row with its file. `hardware` is the id of its folder, `check` the tool that compiles it,
    `arch` the target of that tool if the hardware has no compute_capability, `flags` more options.
    The tool `toolchain` is the hardware's own: it runs the kernel on `arguments` and compares it
    with `reference`, a torch expression over their names."""

    hardware: str
    file: str
    title: str
    operator: str
    language: str
    about: str
    code: str
    shapes: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    check: str = "parse"
    arch: str = ""
    flags: tuple[str, ...] = ()
    status: Status = "untried"
    sources: tuple[Mapping[str, Any], ...] = ()
    checked: tuple[CheckMade, ...] = ()
    compile: tuple[KernelCall, ...] = ()
    arguments: tuple[SampleArgument, ...] = ()
    reference: str = ""

    @property
    def path(self) -> str:
        """Relative to the folder of knowledge."""
        return f"samples/{self.hardware}/{self.file}"

    @property
    def evidence(self) -> str:
        """The checks in words, or ""."""
        return "; ".join(check.sentence() for check in self.checked)

    def document(self) -> str:
        """The Markdown of the built-in document."""
        front = {
            "title": self.title,
            "hardware": [self.hardware],
            "languages": [self.language],
            "topics": list(self.topics),
            "sources": [dict(source) for source in self.sources],
            "validity": [
                {name: value for name, value in asdict(validity).items() if value not in ("", True)}
                for check in self.checked
                for validity in check.validities()
            ],
            FRONT: {
                "operator": self.operator,
                "language": self.language,
                "shapes": list(self.shapes),
                "status": self.status,
                "evidence": self.evidence,
            },
        }
        head = yaml.dump(front, Dumper=DUMPER, sort_keys=False, allow_unicode=True)
        checked = f"Checked: {self.evidence}." if self.evidence else "Nothing of it was checked."
        fence = f"```{self.language}\n{self.code.strip()}\n```"
        parts = (f"# {self.title}", self.about.strip(), checked, fence)
        return f"---\n{head}---\n" + "\n\n".join(parts) + "\n"

    def upload(self) -> FileUpload:
        """The document as a built-in upload."""
        return FileUpload(
            name=f"{Path(self.file).stem}.md",
            data=self.document().encode(),
            category="hardware",
            hardware=(self.hardware,),
            languages=(self.language,),
            title=self.title,
            source_key=f"builtin/{self.path}",
            origin="builtin",
        )


def shipped_samples(folder: Path) -> list[ShippedSample]:
    """The samples of a folder of knowledge. Raises InvalidKnowledge for a row that cannot be
    read."""
    paths = sorted((folder / "samples").glob(f"*/{ROWS}"))
    return [_sample(path, row) for path in paths for row in _rows(path)]


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        loaded = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidKnowledge(f"{path} is not TOML: {error}", hint="Correct that line.") from error
    return list(loaded.get("samples") or ())


def _sample(path: Path, row: Mapping[str, Any]) -> ShippedSample:
    where = f"{path.parent.name}/{ROWS}, {row.get('file', 'a row without file')}"
    names = {f.name for f in fields(ShippedSample)} - {"hardware", "code"}
    odd = set(row) - names
    if odd:
        hint = f"A row has {', '.join(sorted(names))}."
        raise InvalidKnowledge(f"{where}: unknown {', '.join(sorted(odd))}", hint=hint)
    source = path.parent / str(row.get("file", ""))
    if not source.is_file():
        raise InvalidKnowledge(f"{where}: no such file", hint="Put the kernel next to the row.")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in row.items()
    }
    try:
        values["checked"] = tuple(CheckMade(**check) for check in row.get("checked", ()))
        values["compile"] = tuple(_call(call) for call in row.get("compile", ()))
        values["arguments"] = tuple(_argument(given) for given in row.get("arguments", ()))
        code = source.read_text(encoding="utf-8")
        return ShippedSample(hardware=path.parent.name, code=code, **values)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidKnowledge(f"{where}: {error}", hint="See hw_manuals/FORMAT.md.") from error


def _call(call: Mapping[str, Any]) -> KernelCall:
    return KernelCall(**{**call, "arguments": tuple(call.get("arguments", ()))})


def _argument(given: Mapping[str, Any]) -> SampleArgument:
    return SampleArgument(**{**given, "shape": tuple(given["shape"])})


def with_checks(
    kernels: Sequence[KernelSample], front_matter: Mapping[str, Any]
) -> Sequence[KernelSample]:
    """The kernels of a built-in document with the operator and checks in its front matter."""
    row = front_matter.get(FRONT)
    if not isinstance(row, Mapping):
        return kernels
    stated = {name: row[name] for name in ("operator", "language", "status", "evidence")}
    return [replace(kernel, **stated, shapes=tuple(row["shapes"])) for kernel in kernels]


# -- problems of rows


def sample_problems(sample: ShippedSample, known: Mapping[str, Any]) -> Iterator[str]:
    """The mistakes in one sample; `known` are the hardware specs by id."""
    if sample.hardware not in known:
        yield f"no hardware {sample.hardware!r}"
    if sample.operator not in problem_terms().ops:
        yield f"operator {sample.operator!r} is not in kb/problem_terms.toml"
    if sample.check not in CHECKS:
        yield f"check is {sample.check!r}; one of {', '.join(CHECKS)}"
    low, high = ABOUT_WORDS
    words = len(sample.about.split())
    if not low <= words <= high:
        yield f"about has {words} words; write {low} to {high}"
    if sample.check == "toolchain" and not (sample.arguments and sample.reference):
        yield "has no arguments or no reference, which the check toolchain needs"
    if not sample.topics:
        yield "names no topics"
    if not sample.sources:
        yield "names no sources"
    yield from _code_problems(sample)
    yield from _status_problems(sample)


def _code_problems(sample: ShippedSample) -> Iterator[str]:
    if len(sample.code) > MAX_KERNEL:
        yield f"has {len(sample.code)} characters; at most {MAX_KERNEL}"
    if "```" in sample.code:
        yield "contains ```, the mark of the fence around it"
    lines = enumerate(sample.code.split("\n"), start=1)
    long = [str(number) for number, line in lines if len(line) > MAX_LINE]
    if long:
        yield f"lines over {MAX_LINE} characters: {', '.join(long)}"
    if entry_of(sample.code) is None:
        yield "has no recognised entry of a kernel"


def _status_problems(sample: ShippedSample) -> Iterator[str]:
    if sample.status not in STATUSES:
        yield f"status is {sample.status!r}; one of {', '.join(STATUSES)}"
    found = {check.what for check in sample.checked}
    for what in found - set(SEEN):
        yield f"checked.what is {what!r}; one of {', '.join(SEEN)}"
    if sample.status in SEEN and sample.status not in found:
        yield f"status is {sample.status}, but no check found that"
    higher = SEEN[SEEN.index(sample.status) + 1 :] if sample.status in SEEN else SEEN[1:]
    if found & set(higher):
        yield f"status is {sample.status} and a check found more"
    if any(not isinstance(check.date, date) for check in sample.checked):
        yield "checked.date is no date; write it like 2026-11-25"
    for check in sample.checked:
        if (check.roof or check.library) and check.what not in RAN:
            yield f"checked.roof and checked.library are of a kernel that ran, not {check.what!r}"
        if len(check.roof) > MAX_CELL or len(check.library) > MAX_CELL:
            yield f"checked.roof and checked.library are cells of a table: {MAX_CELL} characters"
