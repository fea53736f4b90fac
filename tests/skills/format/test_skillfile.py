"""SKILL.md in the open format: strict reading, canonical writing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb.errors import InvalidKnowledge, KernloreError, NotFound
from skills.format.schema import SkillFile
from skills.format.skillfile import content_sha256, read_skill, render, write_skill

SKILL = SkillFile(
    name="h100-pad-rows",
    description='Use when rows collide: "banks", padding. Do not use for #global memory.',
    body="## When to use\n\nRows collide.\n\n---\n\n```python\nx = 1\n```",
    license="Apache-2.0",
    compatibility="triton>=3.4; NVIDIA sm_90",
    metadata={
        "team": "kernels",
        "kb.signals": "bank_conflict,memory_bound",
        "kb.hardware": "any",
        "kb.dtypes": "float16,bf16",
        "kb.predicate": "signals.bank_conflict",
    },
    files={"references/moves.json": b"[]\n", "assets/x.bin": b"\x00\xff", "scripts/run.sh": b"#!"},
)


def folder(tmp_path: Path, text: str, name: str = "pad-rows") -> Path:
    made = tmp_path / name
    made.mkdir()
    (made / "SKILL.md").write_text(text, encoding="utf-8")
    return made


def front(*lines: str) -> str:
    return "\n".join(["---", *lines, "---", "", "Do it.", ""])


def test_skill_file_round_trips_byte_for_byte(tmp_path: Path) -> None:
    without_scripts = {n: d for n, d in SKILL.files.items() if not n.startswith("scripts/")}
    first = write_skill(SKILL, tmp_path / "a")
    again = read_skill(first)
    assert again == replace(SKILL, files=without_scripts)
    second = write_skill(again, tmp_path / "b")
    for path in first.rglob("*"):
        if path.is_file():
            assert (second / path.relative_to(first)).read_bytes() == path.read_bytes()


def test_scripts_are_not_written(tmp_path: Path) -> None:
    assert "scripts/run.sh" not in read_skill(write_skill(SKILL, tmp_path)).files


def test_scopes_are_normalised() -> None:
    assert SKILL.scopes.dtypes == ("bfloat16", "float16")
    assert SKILL.scopes.hardware == ()
    assert SKILL.scopes.signals == ("bank_conflict", "memory_bound")


def test_checksum_covers_advice_not_the_state() -> None:
    retired = SkillFile(**{**vars(SKILL), "metadata": {**SKILL.metadata, "kb.status": "retired"}})
    other = SkillFile(**{**vars(SKILL), "body": "Other."})
    assert content_sha256(retired) == content_sha256(SKILL) != content_sha256(other)


def test_crlf_and_hand_written_yaml_are_read(tmp_path: Path) -> None:
    text = front(
        "name: pad-rows", "description: >-", "  Use when rows", "  collide.", "license: MIT"
    )
    made = folder(tmp_path, "")
    (made / "SKILL.md").write_bytes(text.replace("\n", "\r\n").encode())
    skill = read_skill(made)
    assert (skill.description, skill.license) == ("Use when rows collide.", "MIT")


NAME, ABOUT = "name: pad-rows", 'description: "Use when rows collide."'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (front(NAME, ABOUT, 'version: "1"'), "version: is not a field"),
        (front("name: other", ABOUT), "in the folder 'pad-rows'"),
        (front("name: Pad_Rows", ABOUT), "is not a skill name"),
        (front(NAME), "description: is missing or empty"),
        (front(NAME, 'description: ""'), "description: is missing or empty"),
        (front(NAME, f'description: "{"x" * 1025}"'), "1025 characters"),
        (front(NAME, ABOUT, f'compatibility: "{"x" * 501}"'), "501 characters"),
        (front(NAME, 'description: "a --- b"'), "contains ---"),
        (front(NAME, "description: Use: when"), "is not YAML"),
        (front(NAME, ABOUT, "metadata:", "  tags: [a, b]"), "flow style"),
        (front(NAME, ABOUT, "metadata:", "  tags:", "    - a"), "metadata.tags: is not text"),
        (front(NAME, ABOUT, "metadata: text"), "metadata: is not a mapping"),
        (front(NAME, ABOUT, ABOUT), "twice"),
        (front(NAME, "description: &x text"), "an anchor"),
        (front(NAME, "description: !!str text"), "a tag"),
        (front(NAME, ABOUT, "metadata:", '  kb.signal: "x"'), "did you mean kb.signals"),
        (front(NAME, ABOUT, "metadata:", '  kb.status: "great"'), "one of candidate"),
        (front(NAME, ABOUT, "metadata:", '  kb.version: "1.0"'), "a whole number"),
        (front(NAME, ABOUT, "metadata:", '  kb.hardware: "h100; h200"'), "is not an id"),
        (front(NAME, ABOUT, "metadata:", '  kb.predicate: "__import__(1)"'), "no such function"),
        ("\n" + front(NAME, ABOUT), "does not start with"),
        (f"---\n{NAME}\n{ABOUT}\n", "has no end"),
        (f"---\n{NAME}\n{ABOUT}\n---\n\n", "body: is empty"),
        (front(NAME, ABOUT) + "x\n" * 500, "lines"),
        (front(NAME, ABOUT) + "x" * 20_001, "characters"),
    ],
)
def test_format_violation_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InvalidKnowledge) as error:
        read_skill(folder(tmp_path, text))
    assert complaint in error.value.message
    assert error.value.hint


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidKnowledge, match=r"(?s)3 problems.*colour.*name.*description.*or empty"
    ):
        read_skill(folder(tmp_path, front("name: A", 'colour: "red"')))


def test_folder_without_exact_file_name_has_hint(tmp_path: Path) -> None:
    made = folder(tmp_path, front(NAME, ABOUT))
    (made / "SKILL.md").rename(made / "skill.md")
    with pytest.raises(NotFound) as error:
        read_skill(made)
    assert error.value.hint == "Rename skill.md to SKILL.md."


def test_links_and_large_files_are_refused(tmp_path: Path) -> None:
    made = folder(tmp_path, front(NAME, ABOUT))
    (made / "big.txt").write_bytes(b"x" * (256 * 1024 + 1))
    with pytest.raises(KernloreError, match="over"):
        read_skill(made)
    (made / "big.txt").unlink()
    (made / "passwords").symlink_to("/etc/passwd")
    with pytest.raises(InvalidKnowledge, match="is a link"):
        read_skill(made)


def test_path_outside_folder_is_refused(tmp_path: Path) -> None:
    bad = SkillFile(**{**vars(SKILL), "files": {"../escaped.txt": b"x"}})
    with pytest.raises(InvalidKnowledge, match="leaves"):
        write_skill(bad, tmp_path)
    assert not (tmp_path / "escaped.txt").exists()


_TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.just(" "),
    min_size=1,
    max_size=80,
).filter(lambda text: text.strip() == text and "---" not in text)


@given(description=_TEXT, value=_TEXT, body=_TEXT)
def test_arbitrary_text_round_trips_in_reference_reader(
    tmp_path_factory: pytest.TempPathFactory, description: str, value: str, body: str
) -> None:
    from skills_ref.parser import parse_frontmatter

    skill = SkillFile("pad-rows", description, body, metadata={"note": value})
    parent = tmp_path_factory.mktemp("skills")
    assert read_skill(write_skill(skill, parent)) == skill
    fields, _ = parse_frontmatter(render(skill))
    assert fields["description"] == description
    assert fields["metadata"]["note"] == value


def test_reference_validator_accepts_written_files(tmp_path: Path) -> None:
    made = write_skill(SKILL, tmp_path)
    command = Path(sys.executable).with_name("agentskills")
    done = subprocess.run([command, "validate", made], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
