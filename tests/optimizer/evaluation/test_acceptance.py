"""The acceptance test of manuals on drawn chips: each planted fault is found, and no other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from api.cli.commands.hardware import _acceptance_failed
from ingestion.formats import parse
from ingestion.passages import split_sections
from ingestion.symbols.cards import cards_of
from kb.catalog.knowledge.symbols import Symbol
from kb.hardware.schema import parse_hardware
from kb.hardware.spec import HardwareSpec, ToolchainSpec
from optimizer.evaluation.acceptance import accept as claims
from optimizer.evaluation.acceptance.accept import ManualTrial, operands_of, sections_of
from optimizer.evaluation.acceptance.page import acceptance_page
from optimizer.evaluation.acceptance.records import (
    FAULTS,
    Acceptance,
    Covered,
    Finding,
    ManualAcceptance,
    SectionMark,
    WrittenKernels,
)
from optimizer.evaluation.acceptance.tool import Host, ProbedTool, host_of, kind_of
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.search.runs.acceptance import PROBLEMS, SIZES, problem_source
from tests.places import ROOT

EXAMPLE = ROOT / "examples" / "assembly_chip"
Fault = Callable[[dict[str, str]], None]


def test_operands_are_split_outside_brackets() -> None:
    assert operands_of("lv ~z0, 64(~i4)", "lv") == ["~z0", "64(~i4)"]
    assert operands_of("  load a, A[i][k];", "load") == ["a", "A[i][k]"]
    assert operands_of("y = vadd(f(a, b), c);", "vadd") == ["f(a, b)", "c"]
    assert operands_of("halt", "halt") == []
    assert operands_of("subtract a, b", "sub") is None
    assert operands_of("put(p, mul(a, b), c);", "mul") == ["a", "b"]


def test_kind_of_a_message_ignores_places_and_names() -> None:
    first = kind_of("k.sas:17: JR-531 unknown instruction: vexq", "vexq ~z1, ~z2")
    assert first == kind_of("k.sas:9: JR-531 unknown instruction: zqxjv", "zqxjv ~z1")
    assert first != kind_of("k.sas:9: JR-524 wrong number of operands: 1", "vexp ~z1")
    clang = "src/k.c:3:9: error: call to undeclared function 'vexq'; ISO C99"
    other = "src/k.c:8:2: error: call to undeclared function 'zqxjv'; ISO C99"
    assert kind_of(clang, "vexq(a)") == kind_of(other, "zqxjv(a)")


# A compiler that reports at most two errors, each at its line, and stops at a `bad` file.
COMPILER = """
import pathlib, sys
source, output = map(pathlib.Path, sys.argv[1:])
lines = source.read_text().splitlines()
if any("crash" in line for line in lines):
    sys.exit("error: the compiler crashed")
wrong = [(n, line) for n, line in enumerate(lines, 1) if line.split()[0] not in ("add", "mul")]
for number, line in wrong[:2]:
    print(f"{source}:{number}: error: unknown name '{line.split()[0]}', did you mean 'add'?")
if wrong:
    sys.exit(1)
output.write_text("")
"""


def test_statements_are_tried_together_with_results_of_single_ones(tmp_path: Path) -> None:
    (tmp_path / "cc.py").write_text(COMPILER, encoding="utf-8")
    template = ToolchainSpec(
        compile=f"python {tmp_path}/cc.py {{source}} {{output}}", run="true", suffix=".s"
    )
    target = EvaluationTarget("x", ("x",))
    host = Host("sum", ("add 1", "add 2"), (0,))
    statements = [
        *(f"{n} {k}" for k in range(9) for n in ("add", "mul")),
        "sub 1",
        "div 1",
        "crash",
    ]
    statements += ["mod 1", "shl 1", 'mul "open']
    together = ProbedTool("s", template, target, tmp_path)
    tried = together.insert_all(host, 0, statements)
    alone = ProbedTool("s", template, target, tmp_path)
    single = {s: alone.compile(host.insert(0, [s]), s) for s in statements}
    assert {s: t.ok for s, t in tried.items()} == {s: t.ok for s, t in single.items()}
    assert {s: t.kind for s, t in tried.items()} == {s: t.kind for s, t in single.items()}
    assert tried["sub 1"].kind == tried["shl 1"].kind == "error unknown name"
    assert together.compiled < 20 < alone.compiled


# -- drawn chips


def _findings(
    folder: Path, seed: int, plant: Fault, wrong_latency: str
) -> tuple[HardwareSpec, list[Finding]]:
    """The findings on an edited manual, with a third of the latencies: each takes five runs."""
    subprocess.run([sys.executable, EXAMPLE / "chip.py", str(seed), folder], check=True)
    docs = {p.name: p.read_text(encoding="utf-8") for p in sorted((folder / "docs").iterdir())}
    plant(docs)
    text = (folder / "hardware.toml").read_text(encoding="utf-8")
    spec = parse_hardware(text, "hardware.toml")
    language, template = next(iter(spec.toolchains.items()))
    cards, kernels, sections = _read(docs, language)
    tool = ProbedTool(language, template, EvaluationTarget(spec.id, (spec.id,)), folder)
    hosts = [h for title, code in kernels if (h := host_of(tool, title, code)) is not None]
    trial = ManualTrial(tool, sorted(hosts, key=lambda h: h.signature is None), cards, sections)
    witnesses = claims.witnesses_of(trial)
    found = [*claims.check_names(trial, witnesses), *claims.check_undefined(trial, witnesses)]
    found += claims.check_operands(trial, witnesses)
    timed = [c for n, c in enumerate(cards) if n % 3 == 0 or c.name == wrong_latency]
    found += claims.check_latencies(replace(trial, cards=timed))
    found += [*claims.check_ranges(trial), *claims.check_tables(trial)]
    found += [*claims.check_references(trial, [s.pattern for s in spec.signatures])]
    return spec, list(dict.fromkeys(found))


def _read(
    docs: Mapping[str, str], language: str
) -> tuple[list[Symbol], list[tuple[str, str]], list[claims.ManualSection]]:
    """Cards, whole kernels (code blocks of many lines) and sections of the documents."""
    cards: list[Symbol] = []
    kernels, sections = [], []
    for name, text in docs.items():
        parsed = parse(text.encode(), name)
        title = parsed.title or name
        split = split_sections(parsed.elements)
        for card in cards_of(split, (language,)):
            place: dict[str, Any] = {
                "document_id": name,
                "document_title": title,
                "path": split[card.section].path,
            }
            stated = {f.name: getattr(card, f.name) for f in fields(card) if f.name != "section"}
            ids: dict[str, Any] = {"id": f"{name}-{len(cards)}", "version": 1, "section_id": ""}
            cards.append(Symbol(**stated, **place, **ids, ordinal=len(cards), hardware=()))
        sections += sections_of(title, parsed)
        code = [e.text for e in parsed.elements if e.kind == "code" and e.text.count("\n") > 20]
        kernels += [(title, block) for block in code]
    return cards, kernels, sections


def _edit(docs: dict[str, str], name: str, pattern: str, by: str) -> None:
    """Replace the first match in a document; no match is an error of the test."""
    edited, count = re.subn(pattern, by, docs[name], count=1, flags=re.S)
    assert count == 1, pattern
    docs[name] = edited


def _faults(found: list[Finding]) -> set[tuple[str, str]]:
    return {(f.check, f.subject) for f in found if f.outcome in FAULTS}


def _section(name: str) -> str:
    """The pattern of an instruction's section up to its text."""
    return rf"(\n{re.escape(name)} - .*?)"


@pytest.mark.slow(seconds=40)
@pytest.mark.parametrize("seed", [8, 23])
def test_exactly_planted_faults_are_found(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "chip"
    subprocess.run([sys.executable, EXAMPLE / "chip.py", str(seed), folder], check=True)
    names = json.loads((folder / "chip.json").read_text(encoding="utf-8"))["operations"]
    slow, short, renamed = (names[n]["name"] for n in ("vmul", "vsub", "exp"))
    cut: list[str] = []

    def plant(docs: dict[str, str]) -> None:
        text = "05-instructions.rst"
        # A wrong latency: the multiplication takes 4 cycles more than it does.
        head = _section(slow)
        stated = re.search(head + r":Cycles: 1 to issue, result after (\d+)", docs[text], re.S)
        assert stated is not None
        _edit(docs, text, head + r"result after \d+", rf"\1result after {int(stated[2]) + 4}")
        # A missing operand, in the signatures and the example.
        last = rf"({re.escape(short)} [^,\s`]+, [^,\s`]+), [^,\s`]+"
        for before, after in ((r"describe:: ", ""), ("- ``", "``"), (":Example: ``", "``")):
            _edit(docs, text, rf"({before}){last}({after})", r"\1\2\3")
        # A renamed instruction, everywhere.
        for name in docs:
            docs[name] = re.sub(rf"(?<![\w.]){re.escape(renamed)}(?![\w.])", "vwarp", docs[name])
        # A truncated table: without the last two rows of the summary of vector arithmetic.
        rows = re.search(r"Vector arithmetic: summary\n(?:   [^\n]*\n|\n)+", docs[text])
        assert rows is not None
        stored = rows[0].split("   * - ")
        cut.extend(re.findall(r"``([^\s`]+)", "".join(stored[-2:])))
        docs[text] = docs[text].replace(rows[0], "   * - ".join(stored[:-2]) + "\n")

    _, found = _findings(tmp_path / "again", seed, plant, slow)
    faults = _faults(found)
    expected = {("latency", slow), ("name", "vwarp"), ("operands", short), ("example", short)}
    assert expected <= faults
    tables = {subject for check, subject in faults if check == "table"}
    assert any(all(name in subject for name in cut) for subject in tables)
    # Only the true name of the renamed instruction may remain, if it is in use.
    rest = {fault for fault in faults - expected if fault[0] != "table"}
    assert rest <= {("name", renamed)}, rest


def test_page_lists_faults_by_section_and_kernels_of_models() -> None:
    fault = Finding("name", "contradicted", "vexq", "Instructions", "vexq", "not known", "vexq a")
    right = Finding("name", "right", "vadd", "Instructions", "vadd", "known")
    language = ManualAcceptance(
        hardware="x1",
        language="xasm",
        tool="command 1",
        mark=50.0,
        counts={"right": 1, "contradicted": 1},
        findings=(fault, right),
        sections=(SectionMark("Instructions", "vexq", 0, 1, 0),),
        coverage=(Covered("names with limits", 1, 2),),
        documents=("Instructions, version 1",),
        kernels=("a sum",),
        compilations=7,
    )
    written = WrittenKernels("softmax", "xasm", "m", 2, 4, "120 packets", "run_1")
    page = acceptance_page(Acceptance("x1", 50.0, "2026-11-29T00:00:00Z", (language,), (written,)))
    assert "## xasm: 50 of 100" in page and "Contradicted by the toolchain" in page
    assert "| name | `vexq` | Instructions > vexq | not known | `vexq a` |" in page
    assert "Right at the first attempt: 0 of 1; within the attempts: 1 of 1." in page


def test_nothing_decided_is_no_mark_and_exits_apart() -> None:
    open_claims = tuple(
        Finding("operands", "unchecked", name, "Instructions", "add", "not counted")
        for name in ("vadd", "vsub")
    )
    language = ManualAcceptance(
        hardware="x1",
        language="xasm",
        tool="command 1",
        mark=None,
        counts={"right": 0, "unchecked": 2},
        findings=open_claims,
        sections=(SectionMark("Instructions", "add", 0, 0, 2),),
        coverage=(),
        documents=(),
        kernels=(),
        compilations=7,
    )
    page = acceptance_page(Acceptance("x1", None, "2026-11-29T00:00:00Z", (language,)))
    assert "## xasm: nothing could be decided" in page
    assert "| Instructions | add | 0 | 0 | 2 operands |" in page
    assert "| operands | 2 | not counted | `vadd` |" in page
    exits = [
        _acceptance_failed({"fail_under": under, "languages": [{"mark": m} for m in marks]})
        for under, marks in ((95, [None]), (0, [None]), (95, [96.0]), (95, [96.0, 94.9, None]))
    ]
    assert exits == [5, 5, 0, 1]


@pytest.mark.parametrize("dtype", ["float32", "int16", "uint8"])
def test_problems_for_models_compute(dtype: str) -> None:
    for name in PROBLEMS:
        module: dict[str, Any] = {}
        exec(problem_source(name, dtype, SIZES), module)
        inputs = module["get_inputs"]()
        output = module["Model"]()(*inputs)
        assert {str(x.dtype) for x in inputs} == {f"torch.{dtype}"}
        assert output.isfinite().all() and output.unique().numel() > 20
        assert output.dtype.is_floating_point == dtype.startswith("float")


def test_names_of_statements_and_kernels_of_assembly_are_not_tried_as_calls() -> None:
    of = replace(_read({"m.md": "# A\n\n## f1_add\n\n`int f1_add(int a)` adds.\n"}, "x")[0][0])
    assert not claims._is_statement(of)
    assert claims._is_statement(replace(of, name="vle8.v", signature="vle8.v vd, (rs1), vm"))
    sample = "void run(int *x) {\n  x[0] = 1;\n}\n"
    assert claims._in_other_notation("# void f() {\nloop:\n  vle8.v v0, (a0)\n  ret\n", sample)
    assert not claims._in_other_notation("#include <a.h>\n" + sample, sample)


# A compiler of calls that knows three functions and a macro, counts arguments of the first two, and
# stops at 20 errors.
CALLS = """
import pathlib, re, sys
source, output = map(pathlib.Path, sys.argv[1:])
known = {"fill": 2, "scale": 3, "pick": None, "FAST": None}
errors = []
for number, line in enumerate(source.read_text().splitlines(), 1):
    name, given = re.fullmatch(r"\\s*(\\w+)\\((.*)\\);", line).groups()
    count = len([a for a in given.split(",") if a.strip()])
    if name not in known:
        errors.append((number, f"call to undeclared function '{name}'"))
    elif known[name] not in (None, count):
        few = "few" if count < known[name] else "many"
        errors.append((number, f"too {few} arguments, expected {known[name]}, have {count}"))
    elif name == "pick" and count != 2:
        errors.append((number, f"no matching function '{name}'"))
    elif name == "FAST":
        errors.append((number, "not a function"))
for number, message in errors[:20]:
    print(f"{source}:{number}: error: {message}")
if errors:
    sys.exit(1)
output.write_text("")
"""
CALLS_MANUAL = """# Calls

## Basic

```c
void fill(int to, int value);
void scale(int to, int by);
void pick(int to, int of, int at);
void zero(int to);
```

## Wide

The calls in this section are available when `WIDE` is defined.

### Copies

```c
void wide_copy(int to, int of);
```

## Fast

These calls are available when `FAST` is defined.

```c
void fast_copy(int to, int of);

// Only if FAST != 0
void fast_move(int to, int of);

// Only if WIDE != 0
void wide_move(int to, int of);
```
"""


def test_numbers_of_operands_and_conditions_are_held_against_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cc.py").write_text(CALLS, encoding="utf-8")
    monkeypatch.setattr(claims, "LEAST_AGREED", 1)  # two functions show how arguments are counted
    template = ToolchainSpec(
        compile=f"python {tmp_path}/cc.py {{source}} {{output}}", run="true", suffix=".c"
    )
    tool = ProbedTool("c", template, EvaluationTarget("x", ("x",)), tmp_path)
    cards, _, sections = _read({"calls.md": CALLS_MANUAL}, "c")
    trial = ManualTrial(tool, [Host("fill", ("fill(1, 2);", "fill(3, 4);"), (0,))], cards, sections)
    witnesses = claims.witnesses_of(trial)
    names = {f.subject: f for f in claims.check_names(trial, witnesses)}
    assert {name: f.outcome for name, f in names.items()} == {
        "fill": "right",
        "scale": "right",
        "pick": "right",
        "zero": "contradicted",
        "wide_copy": "unchecked",
        "fast_copy": "contradicted",
        "fast_move": "contradicted",
        "wide_move": "unchecked",
    }
    assert "available when `WIDE` is defined" in names["wide_copy"].message
    operands = {f.subject: f for f in claims.check_operands(trial, witnesses)}
    assert operands["fill"].outcome == "right"
    assert operands["scale"].outcome == "contradicted"
    assert operands["scale"].message == "the signature has 2 operands, the tool counts 3"
    # Messages about `pick` do not count, and a name that is refused has no operands.
    assert {operands[n].outcome for n in ("pick", "zero", "wide_copy")} == {"unchecked"}


def test_optional_parts_of_a_name_are_no_optional_operands() -> None:
    card = _read(
        {"m.md": "# A\n\n```c\nint f1_add[_n]_s8(int a, int b);\nint f1_end(void);\n```\n"}, "c"
    )
    counts = {c.name: claims._stated_count(c) for c in card[0]}
    assert counts["f1_add_n_s8"] == 2 and counts["f1_end"] == 0
