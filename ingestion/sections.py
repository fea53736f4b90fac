"""Elements into sections: one heading path each, in reading order. Knows nothing about passages or
the catalog.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingestion.elements import Element

MAX_HEADING = 300  # longer "headings" are paragraphs that a parser mistook


@dataclass(frozen=True)
class Section:
    """A heading with what stands directly under it.

    path: headings from the outermost to this one; empty for what precedes the first heading.
    parent: index of the enclosing section in the list, or None.
    """

    path: tuple[str, ...]
    level: int
    parent: int | None
    elements: tuple[Element, ...]
    heading: Element | None = None

    @property
    def title(self) -> str:
        return self.path[-1] if self.path else ""


def split_sections(elements: Sequence[Element]) -> list[Section]:
    """Group elements under their headings. Sections without own content are kept: they carry the
    tree.
    """
    sections: list[Section] = []
    open_path: list[int] = []  # indices of the enclosing sections, outermost first
    path: tuple[str, ...] = ()
    heading: Element | None = None
    body: list[Element] = []

    def close() -> None:
        if heading is None and not body:
            return
        level = (heading.level or 1) if heading else 0
        while open_path and sections[open_path[-1]].level >= level:
            open_path.pop()
        parent = open_path[-1] if open_path else None
        sections.append(Section(path, level, parent, tuple(body), heading))
        if heading is not None:
            open_path.append(len(sections) - 1)

    levels: list[tuple[int, str]] = []
    for element in elements:
        if element.kind != "title" or len(element.text) > MAX_HEADING:
            body.append(element)
            continue
        close()
        level = element.level or 1
        while levels and levels[-1][0] >= level:
            levels.pop()
        levels.append((level, " ".join(element.text.split())))
        path = tuple(text for _, text in levels)
        heading, body = element, []
    close()
    return sections
