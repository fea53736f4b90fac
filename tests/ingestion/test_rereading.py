"""A chip that states its toolchain after its manuals were uploaded: they are read again."""

from __future__ import annotations

from ingestion.uploads import read_again
from kb.hardware.schema import parse_hardware
from tests.fixtures import Store

MANUAL = b"# Guide\n\n## Run a kernel\n\nText of the guide.\n"
BEFORE = 'id = "late-1"\nname = "Late 1"\nvendor = "late"\nlanguages = ["late-c"]\n'
TOOLS = 'compile = "cc {source} {output}"\nrun = "run {output} {input}"\n'
AFTER = f"{BEFORE}\n[toolchains.late-c]\n{TOOLS}"


def test_manuals_are_read_again_once_the_chip_states_its_languages(store: Store) -> None:
    store.registry.put(parse_hardware(BEFORE, "test"), "api")
    sent = store.submit("guide.md", MANUAL, hardware=("late-1",), title="The guide")
    other = store.submit("other.md", MANUAL + b"More.\n", category="guidance")
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


def test_why_a_block_of_the_chips_own_language_is_no_sample_is_said(store: Store) -> None:
    """Before the toolchain is stated and after it; each reason says what can be done."""
    store.registry.put(parse_hardware(BEFORE, "test"), "api")
    for description, said in ((BEFORE, "Begin it with a label"), (AFTER, "nothing to add")):
        store.registry.put(parse_hardware(description, "test"), "api")
        sent = store.ingest("guide.md", BLOCK + description.encode(), hardware=("late-1",))
        result = store.jobs.get(sent.job_id or "").result or {}
        assert any(said in reason for reason in result["samples_left_out"]), result
