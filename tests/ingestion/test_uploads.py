"""Uploads: their names, their outcome, and the checks before parsing."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion.formats import parse
from ingestion.includes import JoinedUpload, join_includes
from ingestion.uploads import (
    MAX_NAME,
    FileUpload,
    files_under,
    links_out,
    read_again,
    safe_name,
    title_from_name,
)
from kb.errors import (
    InvalidKnowledge,
    InvalidRequest,
    KernloreError,
    PayloadTooLarge,
    UnknownHardware,
    UnsupportedFormat,
)
from kb.hardware.schema import parse_hardware
from tests.fixtures import Store

MANUAL = "# Manual\n\nOne block may take 227 KiB.\n"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("manual.pdf", "manual.pdf"),
        ("guides/h100.md", "guides/h100.md"),
        ("../../etc/passwd", "etc/passwd"),
        ("/etc/passwd", "etc/passwd"),
        ("C:\\Users\\me\\manual.pdf", "C_/Users/me/manual.pdf"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("a/../b/./c.md", "a/b/c.md"),
        ("evil\x00.md", "evil_.md"),
        ("line\nbreak.md", "line_break.md"),
        ("ann\u202efdp.md", "ann_fdp.md"),  # right-to-left override
        ("broken\udcff.md", "broken?.md".replace("?", "_")),  # not UTF-8
        ("Gru\u0308ße.md", "Grüße.md"),
        ("...hidden", "hidden"),
        ("con .md ", "con .md"),
    ],
)
def test_hostile_names_become_labels(name: str, label: str) -> None:
    assert safe_name(name) == label


@pytest.mark.parametrize("name", ["", "/", "..", "../..", "\\", "   ", "\x00", "./."])
def test_empty_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="unusable file name"):
        safe_name(name)


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_names_cannot_leave_their_folder(name: str) -> None:
    try:
        label = safe_name(name)
    except InvalidRequest:
        return
    label.encode()
    parts = PurePosixPath(label).parts
    assert 0 < len(label) <= MAX_NAME
    assert not label.startswith("/") and ".." not in parts
    assert not any(ord(c) < 32 or c == "\\" for c in label)
    assert safe_name(label) == label


def test_title_from_file_name() -> None:
    assert title_from_name("guides/h100_tuning__guide.pdf") == "h100 tuning guide"


def test_outcomes_of_an_upload(store: Store) -> None:
    first = store.submit("manual.md", MANUAL)
    assert first.outcome == "created" and first.job_id
    again = store.submit("manual.md", MANUAL)
    assert (again.outcome, again.document_id, again.job_id) == (
        "unchanged",
        first.document_id,
        None,
    )
    changed = store.submit("manual.md", MANUAL + "More.\n")
    assert (changed.outcome, changed.document_id) == ("new_version", first.document_id)
    twin = store.submit("copy.md", MANUAL + "More.\n")
    assert (twin.outcome, twin.document_id, twin.job_id) == (
        "duplicate_of",
        first.document_id,
        None,
    )


def test_same_bytes_for_another_chip_are_another_document(store: Store) -> None:
    ids = {
        store.submit("manual.md", MANUAL, hardware=scope).document_id
        for scope in ((), ("h100",), ("H200",), ("h100", "h200"))
    }
    assert len(ids) == 4


def test_source_key_identifies_document(store: Store) -> None:
    first = store.submit("v1.md", MANUAL, source_key="tuning-guide")
    second = store.submit("v2.md", MANUAL + "More.\n", source_key="tuning-guide")
    assert second.document_id == first.document_id and second.outcome == "new_version"


def test_another_pipeline_reads_same_bytes_again(store: Store) -> None:
    store.submit("manual.md", MANUAL)
    newer = store.uploads_of("another pipeline")
    again = newer.submit(FileUpload("manual.md", MANUAL.encode()))
    assert again.outcome == "new_version" and again.job_id
    assert newer.submit(FileUpload("manual.md", MANUAL.encode())).outcome == "unchanged"


@pytest.mark.parametrize(
    ("upload", "error", "hint"),
    [
        (FileUpload("a.md", b""), KernloreError, ""),
        (FileUpload("a.bin", b"\x00\x01\x02\x03" * 64), UnsupportedFormat, ""),
        (FileUpload("a.md", b"x" * 5000), PayloadTooLarge, "KERNLORE_MAX_FILE_BYTES"),
        (FileUpload("a.md", b"# A", hardware=("h10",)), UnknownHardware, "h100"),
        (FileUpload("a.md", b"# A", category="hardwares"), InvalidRequest, "hardware"),
        (FileUpload("a.md", b"# A", category="hardware"), InvalidRequest, "hardware"),
        (FileUpload("a.md", b"# A", languages=("tri ton!",)), InvalidRequest, "triton"),
        (FileUpload("..", b"# A"), InvalidRequest, "plain name"),
    ],
)
def test_invalid_uploads_are_refused_before_parsing(
    store: Store, upload: FileUpload, error: type[KernloreError], hint: str
) -> None:
    with pytest.raises(error) as refused:
        store.uploads_of("p", max_bytes=4096).submit(upload)
    assert refused.value.hint and hint in refused.value.hint
    assert store.rows("documents") == store.rows("work") == 0


@pytest.mark.parametrize(
    "key",
    [
        "builtin/guidance/memory-bound.md",
        "./builtin/a.md",
        "/builtin//a.md",
        "x/../builtin/a.md",
        "../builtin/a.md",
        "builtin\\guidance\\a.md",
        ".\\BuiltIn/a.md",
        " BUILTIN / a.md",
        "\uff42uiltin/a.md",  # a full-width letter
        "built\u200bin/a.md",  # an invisible character
        "builtin",
    ],
)
def test_upload_with_built_in_source_key_is_refused(store: Store, key: str) -> None:
    with pytest.raises(InvalidRequest, match="built-in knowledge") as refused:
        store.submit("mine.md", MANUAL, source_key=key)
    assert "KERNLORE_KNOWLEDGE_DIR" in refused.value.hint
    assert store.rows("documents") == 0


@pytest.mark.parametrize("key", ["builtins/a.md", "our/builtin/a.md", "my builtin", "builtin.md"])
def test_key_similar_to_built_in_one_is_accepted(store: Store, key: str) -> None:
    assert store.submit("mine.md", MANUAL, source_key=key).outcome == "created"


def test_chip_id_cannot_map_to_built_in_source_keys(store: Store) -> None:
    """The default key of a document begins with its chip."""
    chip = parse_hardware({"id": "builtin", "name": "Ours", "vendor": "us"}, "a test")
    with pytest.raises(InvalidKnowledge, match="source keys"):
        store.registry.put(chip, "api")


def test_links_out_of_a_directory_are_skipped(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "manuals"
    for name in ("elsewhere/secret.md", "manuals/b.md", "manuals/sub/c.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# T")
    (folder / "p.md").symlink_to(elsewhere / "secret.md")
    (folder / "sub" / "all").symlink_to(elsewhere)
    (folder / "gone.md").symlink_to(elsewhere / "missing.md")
    (folder / "twin.md").symlink_to(folder / "b.md")
    (folder / ".hidden.md").symlink_to(elsewhere / "secret.md")
    assert [file.name for file in files_under([folder])] == ["b.md", "sub/c.md", "twin.md"]
    left_out = [folder / name for name in ("gone.md", "p.md", "sub/all")]
    assert list(links_out([folder])) == left_out
    # Paths named by the caller are read, link or not.
    named = [folder / "p.md", folder / "sub" / "all"]
    assert [file.name for file in files_under(named)] == ["p.md", "secret.md"]
    assert list(links_out(named)) == []


def test_directory_is_read_in_order_without_caches(tmp_path: Path) -> None:
    for name in ("b.md", "a/c.md", ".git/config", "a/__pycache__/x.pyc", ".hidden.md", "a/.b.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# T")
    assert [file.name for file in files_under([tmp_path])] == ["a/c.md", "b.md"]
    assert [file.name for file in files_under([tmp_path / "b.md"])] == ["b.md"]
    with pytest.raises(InvalidRequest, match="no file or folder"):
        list(files_under([tmp_path / "missing"]))


# -- reading again

CHIP_MANUAL = b"# Guide\n\n## Run a kernel\n\nText of the guide.\n"
BEFORE = 'id = "late-1"\nname = "Late 1"\nvendor = "late"\nlanguages = ["late-c"]\n'
TOOLS = 'compile = "cc {source} {output}"\nrun = "run {output} {input}"\n'
AFTER = f"{BEFORE}\n[toolchains.late-c]\n{TOOLS}"


def test_manuals_are_read_again_once_chip_has_languages(store: Store) -> None:
    store.registry.put(parse_hardware(BEFORE, "test"), "api")
    sent = store.submit("guide.md", CHIP_MANUAL, hardware=("late-1",), title="The guide")
    other = store.submit("other.md", CHIP_MANUAL + b"More.\n", category="guidance")
    assert sent.outcome == other.outcome == "created"

    def again() -> list[tuple[str, str]]:
        queued = read_again(store.uploads, store.documents, store.blobs, "late-1")
        return [(submitted.document_id, submitted.outcome) for submitted in queued]

    assert again() == []
    store.registry.put(parse_hardware(AFTER, "test"), "api")
    assert again() == [(sent.document_id, "new_version")]
    assert again() == []
    assert store.documents.get(sent.document_id).title == "The guide"


BLOCK = (
    b"# Guide\n\n## A kernel\n\n```late-c\n.perch\nvld v0, a\nvmix v0, v0\nvst v0, b\nland\n```\n"
)


def test_reasons_for_dropped_blocks_of_an_own_language(store: Store) -> None:
    """Before and after the toolchain is stated; each reason has a remedy."""
    store.registry.put(parse_hardware(BEFORE, "test"), "api")
    for description, message in ((BEFORE, "Begin it with a label"), (AFTER, "nothing to add")):
        store.registry.put(parse_hardware(description, "test"), "api")
        sent = store.ingest("guide.md", BLOCK + description.encode(), hardware=("late-1",))
        result = store.jobs.get(sent.job_id or "").result or {}
        assert any(message in reason for reason in result["samples_left_out"]), result


# -- files of one upload that include each other


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
