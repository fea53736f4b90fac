"""What the readers of AsciiDoc, LaTeX and manual pages find in a folder of sources, and what plain
text finds in the same files.

    python -m benchmarks.knowledge.markup FOLDER --only '*.adoc'

Files that include each other are joined first, as in an upload. A line is noise if it shows markup
outside of a code block.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from ingestion.elements import ParsedDocument
from ingestion.formats import parse
from ingestion.formats.detect import decode
from ingestion.formats.text import parse_text
from ingestion.includes import join_includes
from ingestion.passages import split_sections
from ingestion.read import facts_in
from ingestion.symbols.cards import cards_of
from kb.errors import KernloreError

NOISE = re.compile(
    # AsciiDoc
    r"^\[[\w#%.\[,][^\]]*[=,#.%][^\]]*\]$|^\|===|include::|^:[\w-]+:(?: |$)|\[\[[\w:.-]+\]\]"
    r"|<<[\w#:. -]+[,>]|(?<![\w`])[a-z]{2,}:[\w.*-]+\[|\[#[\w:.-]+\]|^(?:-{4}|={4}|\.{4}|\+{4})$"
    # LaTeX
    r"|\\(?:begin|end|item|section|subsection|chapter|label|ref|texttt|textbf|emph|hline|cite|input"
    r"|instr|insn\w*|multicolumn)\b|^\s*%"
    # roff
    r"|^[.'][A-Z]{1,2}(?: |$)|^[.']\\\"|\\f[BIRP]|\\\((?:em|en|aq|bu)|\\-"
)
COUNTED = ("files", "refused", "headings", "tables", "code blocks", "facts", "cards", "noise lines")


def counted(document: ParsedDocument) -> Counter[str]:
    """What one document gives."""
    sections = split_sections(document.elements)
    facts, _ = facts_in(sections)
    prose = (e.text for e in document.elements if e.kind != "code")
    return Counter(
        {
            "files": 1,
            "headings": sum(e.kind == "title" for e in document.elements),
            "tables": sum(e.table is not None for e in document.elements),
            "code blocks": sum(e.kind == "code" for e in document.elements),
            "facts": len(facts),
            "cards": len(cards_of(sections)),
            "noise lines": sum(bool(NOISE.search(line)) for t in prose for line in t.split("\n")),
        }
    )


def measured(files: dict[str, bytes], read: Callable[[str], ParsedDocument]) -> Counter[str]:
    """The counts of all files together."""
    total: Counter[str] = Counter()
    for name in files:
        try:
            total += counted(read(name))
        except KernloreError:
            total["refused"] += 1
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", help="pattern of names of files that are read")
    options = parser.parse_args()
    folder: Path = options.folder
    names = [p.relative_to(folder).as_posix() for p in sorted(folder.rglob("*")) if p.is_file()]
    chosen = [name for name in names if fnmatch(name, options.only)]
    joined = join_includes(names, lambda name: (folder / name).read_bytes())
    whole = {
        name: joined.texts.get(name) or (folder / name).read_bytes()
        for name in chosen
        if name not in joined.part_of
    }

    before = measured(whole, lambda name: parse_text(decode(whole[name]).text))
    started = time.perf_counter()
    after = measured(whole, lambda name: parse(whole[name], name))
    seconds = time.perf_counter() - started
    print(f"| {folder.name} | " + " | ".join(COUNTED) + " |")
    for label, counts in (("plain text", before), ("reader", after)):
        print(f"| {label} | " + " | ".join(f"{counts[key]:,}" for key in COUNTED) + " |")
    print(f"{sum(map(len, whole.values())):,} bytes in {seconds:.1f} s")


if __name__ == "__main__":
    main()
