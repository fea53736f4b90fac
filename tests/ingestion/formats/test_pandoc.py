"""LaTeX and manual pages."""

from __future__ import annotations

import pytest

from ingestion.elements import Element, ParsedDocument
from ingestion.formats import Format, detect, parse
from ingestion.formats.pandoc import parse_latex, parse_roff
from kb.errors import KernloreError

MANUAL = r"""
\documentclass{book}
\newcommand{\instr}[1]{\texttt{#1}}
\title{Quill Manual}
\begin{document}
\maketitle
% secret 42
\chapter{Vector unit}
\section{Registers}\label{sec:rf}
The unit has \unknownmacro{32 registers} of $2^{n}$ bits.\footnote{At reset.}
\begin{table}
\caption{Instructions}
\begin{tabular}{|l|l|r|}
\hline
Instruction & Operands & Latency \\ \hline
\instr{vld.w} & \instr{vd, (rs1)} & 11 \\
\multicolumn{3}{c}{Not pipelined} \\ \hline
\end{tabular}
\end{table}
\begin{bytefield}{16} \bitbox{4}{opcode} & \bitbox{12}{address} \end{bytefield}
\begin{warnbox}
Never unmap it.
\end{warnbox}
\begin{lstlisting}[language=C,caption=Loading]
load(x);
\end{lstlisting}
\input{chapters/more}
\appendix
\chapter{History}
See Section~\ref{sec:rf}.
\end{document}
"""

PAGE = r""".\" a comment
.TH QPROF 1 2026-11-01
.SH NAME
qprof \- samples events
.SH OPTIONS
.TP
.B \-e
The event.
.TS
l l.
Event	Unit
cycles	1
.TE
.nf
qprof \-e cycles
.fi
"""


def kinds(document: ParsedDocument) -> list[tuple[str, str]]:
    return [(element.kind, element.text) for element in document.elements]


def test_latex_manual() -> None:
    assert detect(MANUAL.encode(), "quill.txt") is Format.LATEX
    document = parse(MANUAL.encode(), "quill.tex")
    titles = [(e.text, e.level) for e in document.elements if e.kind == "title"]
    assert titles == [("1 Vector unit", 1), ("1.1 Registers", 2), ("A History", 1)]
    assert document.title == "Quill Manual"
    shown = kinds(document)
    assert ("text", "The unit has 32 registers of $2^{n}$ bits. (At reset.)") in shown
    assert ("text", "Never unmap it.") in shown
    assert ("text", "See Section 1.1.") in shown
    assert Element("code", "load(x);", language="c") in document.elements
    assert "secret" not in str(shown)
    (warning,) = document.warnings
    assert warning.startswith("\\input{chapters/more} was not read")
    instructions, encoding = (e.table for e in document.elements if e.table is not None)
    assert instructions.caption == "Instructions"
    assert instructions.header == (("Instruction", "Operands", "Latency"),)
    assert instructions.rows[0] == ("`vld.w`", "`vd, (rs1)`", "11")
    assert (encoding.header, encoding.rows) == ((("0-3", "4-15"),), (("opcode", "address"),))


def test_part_refused_by_pandoc_is_plain_text() -> None:
    broken = MANUAL.replace("\\chapter{History}", "\\section{Wrong}\nA } brace.\n\\section{Last}")
    document = parse_latex(broken)
    shown = kinds(document)
    assert ("title", "Wrong") in shown and ("text", "A } brace.") in shown
    assert ("title", "Last") in shown and ("title", "Registers") in shown
    assert any("read as plain text" in warning for warning in document.warnings)


@pytest.mark.parametrize(
    "macros",
    [
        r"\newcommand{\bomb}{\bomb\bomb}",
        "".join(
            rf"\newcommand{{\x{a}}}{{\x{b}\x{b}}}"
            for a, b in zip("abcdefghijklmnopqrstuvwxy", "bcdefghijklmnopqrstuvwxyz", strict=True)
        )
        + r"\newcommand{\bomb}{\xa}",
    ],
)
def test_macro_bombs_are_bounded(macros: str) -> None:
    text = f"{macros}\n\\begin{{document}}\n\\section{{One}}\nUseful.\n\n\\bomb\n\\end{{document}}"
    try:
        document = parse_latex(text)
    except KernloreError as error:
        assert error.hint
    else:
        assert "Useful." in "".join(e.text for e in document.elements)


def test_manual_page() -> None:
    assert detect(PAGE.encode(), "qprof.1") is Format.ROFF
    document = parse(PAGE.encode(), "qprof.1")
    assert document.title == "QPROF(1)"
    assert kinds(document) == [
        ("title", "QPROF(1)"),
        ("title", "NAME"),
        ("text", "qprof - samples events"),
        ("title", "OPTIONS"),
        ("text", "-e\nThe event."),
        ("table", "| Event | Unit |\n| --- | --- |\n| cycles | 1 |"),
        ("code", "qprof -e cycles"),
    ]
    assert [e.level for e in document.elements if e.kind == "title"] == [1, 2, 2]


def test_mdoc_page() -> None:
    page = ".Dd June 1, 2026\n.Dt QTOP 8\n.Os\n.Sh NAME\n.Nm qtop\n.Nd shows load\n"
    assert detect(page.encode(), "qtop.8") is Format.ROFF
    document = parse_roff(page)
    assert document.title == "QTOP(8)"
    assert ("text", "`qtop` — shows load") in kinds(document)
