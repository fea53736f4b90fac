"""Files of one upload that include each other."""

from __future__ import annotations

import pytest

from ingestion.formats import parse
from ingestion.includes import JoinedUpload, join_includes


def joined(files: dict[str, str], most: int = 100_000) -> JoinedUpload:
    return join_includes(files, lambda name: files[name].encode(), most)


def test_asciidoc_in_parts_has_one_section_tree() -> None:
    files = {
        "spec/main.adoc": "= Spec\n:parts: chapters\n\n== One\n\n"
        "include::{parts}/two.adoc[leveloffset=+1]\n\n== Three\n\ninclude::gone.adoc[]\n",
        "spec/chapters/two.adoc": "= Two\n\n[source,asm]\n----\n"
        "include::../code/load.s[tag=body]\n----\n",
        "spec/code/load.s": "; tag::body[]\nld x0\n; end::body[]\nret\n",
        "notes.md": "# Notes\n",
    }
    upload = joined(files)
    assert upload.part_of == {"spec/chapters/two.adoc": "spec/main.adoc"}  # without the cut file
    document = parse(upload.texts["spec/main.adoc"], "main.adoc")
    shown = [(e.text, e.level) for e in document.elements]
    assert shown == [("Spec", 1), ("One", 2), ("Two", 2), ("ld x0", None), ("Three", 2)]
    assert len(document.warnings) == 1 and "include::gone.adoc[]" in document.warnings[0]


def test_latex_in_parts() -> None:
    files = {
        "main.tex": "\\documentclass{book}\n\\usepackage{quill}\n\\begin{document}\n"
        "\\include{parts/one}\n% \\input{parts/draft}\n\\import{parts/}{two}\n\\end{document}\n",
        "parts/one.tex": "\\chapter{One}\n\\lstinputlisting[language=C]{load.c}\n",
        "parts/two.tex": "\\section{Two}\n\\op{vadd} adds.\n",
        "parts/draft.tex": "\\section{Draft}\n",
        "parts/load.c": "load(x);\n",
        "quill.sty": "\\ProvidesPackage{quill}\n\\newcommand{\\op}[1]{\\texttt{#1}}\n\\broken{\n",
    }
    upload = joined(files)
    assert upload.part_of.keys() == files.keys() - {"main.tex", "parts/draft.tex"}
    document = parse(upload.texts["main.tex"], "main.tex")
    shown = [(e.kind, e.text) for e in document.elements]
    expected = [("title", "1 One"), ("code", "load(x);"), ("title", "1.1 Two")]
    assert shown == [*expected, ("text", "`vadd` adds.")]
    assert document.warnings == ()


@pytest.mark.slow
def test_cycles_and_bombs_are_bounded() -> None:
    circle = {"a.adoc": "A\n\ninclude::b.adoc[]\n", "b.adoc": "B\n\ninclude::a.adoc[]\n"}
    upload = joined(circle)
    assert upload.part_of == {"b.adoc": "a.adoc"} and upload.texts["a.adoc"].count(b"\nB") == 1
    twice = {f"{n}.tex": f"x\\input{{{n + 1}}}\\input{{{n + 1}}}" for n in range(60)}
    errors = joined(twice).errors
    assert "with the files that it includes" in errors["0.tex"].message
    assert not joined({"a.md": "include::b.md[]", "b.md": "text"}).texts


@pytest.mark.parametrize("name", ["a.adoc", "a.tex"])
def test_single_file_is_unchanged(name: str) -> None:
    assert joined({name: "include::b[]\\input{b}"}) == JoinedUpload()
