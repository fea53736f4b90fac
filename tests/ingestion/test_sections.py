"""Elements under their headings: paths, parents, nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingestion.elements import Element
from ingestion.passages import MAX_HEADING, split_sections


def title(text: str, level: int) -> Element:
    return Element("title", text, level=level)


def test_paths_follow_the_levels() -> None:
    sections = split_sections(
        [
            Element("text", "before"),
            title("Manual", 1),
            title("Memory", 2),
            Element("text", "a"),
            title("Banks", 4),  # a skipped level
            Element("text", "b"),
            title("Clocks", 2),
        ]
    )
    assert [section.path for section in sections] == [
        (),
        ("Manual",),
        ("Manual", "Memory"),
        ("Manual", "Memory", "Banks"),
        ("Manual", "Clocks"),
    ]
    assert [section.parent for section in sections] == [None, None, 1, 2, 1]
    assert sections[4].elements == () and sections[4].title == "Clocks"


def test_a_paragraph_taken_for_a_heading_is_content() -> None:
    long = title("word " * MAX_HEADING, 1)
    [section] = split_sections([long])
    assert section.path == () and section.elements == (long,)


def test_white_space_in_headings_is_one_blank() -> None:
    [section] = split_sections([title("Shared\n  memory", 1)])
    assert section.path == ("Shared memory",)


ELEMENTS = st.lists(
    st.one_of(
        st.builds(title, st.text(min_size=1, max_size=5), st.integers(1, 6)),
        st.builds(Element, st.just("text"), st.text(max_size=5)),
    )
)


@given(ELEMENTS)
def test_every_element_is_in_one_section_in_order(elements: list[Element]) -> None:
    sections = split_sections(elements)
    seen: list[Element] = []
    for index, section in enumerate(sections):
        seen += [section.heading] if section.heading else []
        seen += section.elements
        assert section.parent is None or section.parent < index
        if section.parent is not None:
            parent = sections[section.parent]
            assert parent.level < section.level
            assert section.path[: len(parent.path)] == parent.path
    assert seen == elements
