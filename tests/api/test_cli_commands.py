"""The command line as users and programs run it, on a real data directory."""

from __future__ import annotations

import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.cli.main import COMMANDS, LazyCommand, main
from api.cli.main import kernlore as kernlore_group
from retrieval.snapshot.store import FOLDER
from tests.api.cli_process import (
    ERROR_KEYS,
    ROOT,
    CommandResult,
    document_of,
    free_port,
    kernlore,
    kernlore_process,
)
from tests.catalogs import copy_data_dir
from tests.shared import copy_knowledge
from tests.store_servers import lose_files

pytestmark = pytest.mark.slow(seconds=15)

HEAVY = (
    "chromadb",
    "torch",
    "llama_index",
    "fastapi",
    "uvicorn",
    "sqlalchemy",
    "numpy",
    "onnxruntime",
    "tokenizers",
    "sentence_transformers",
    "pydantic",
    "httpx",
    "structlog",
    "pypdfium2",
    "pdfplumber",
)


# -- cost, and refusals


def test_help_loads_no_heavy_modules() -> None:
    code = (
        "import sys\nfrom api.cli.main import main\ncode = main(sys.argv[1:])\n"
        f"print(sorted({{m.partition('.')[0] for m in sys.modules}} & set({HEAVY!r})))\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "retrieve" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_takes_little_longer_than_start_of_python() -> None:
    """CPU time, the best of three; about 0.09 s, of which 0.03 s are Python's start."""
    assert processor_seconds("-m", "api.cli.main", "--help") < 10 * processor_seconds("-c", "")


def processor_seconds(*arguments: str) -> float:
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def test_skills_list_loads_no_model_and_no_server(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom api.cli.main import main\ncode = main(sys.argv[1:])\n"
        "heavy = {'chromadb', 'torch', 'llama_index', 'fastapi', 'onnxruntime', 'tokenizers'}\n"
        "print(sorted(heavy & {m.partition('.')[0] for m in sys.modules}))\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "skills", "list", "--data-dir", str(tmp_path / "data")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def pages(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The command itself, then every command below it, each imported."""
    command = command.load() if isinstance(command, LazyCommand) else command
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from pages((*path, name), below)


ALL_PAGES = list(pages(("kernlore",), kernlore_group()))


def test_command_list_has_summary_of_each_command() -> None:
    for name in COMMANDS:
        shown, own = LazyCommand(name), LazyCommand(name).load()
        assert shown.get_short_help_str(200) == own.get_short_help_str(200)


@pytest.mark.parametrize(("path", "command"), ALL_PAGES, ids=[" ".join(p) for p, _ in ALL_PAGES])
def test_help_is_complete_sentences_within_terminal_width(
    path: tuple[str, ...], command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*path[1:], "--help"]) == 0
    page = capsys.readouterr().out
    assert "..." not in page.partition("Commands:")[2]  # a truncated first sentence
    assert "Data directory ." not in page
    for parameter in command.params:
        text = parameter.help
        assert text and text.endswith("."), text


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["retrieve", "--signal", "memory_boun"], "unknown_signal"),
        (["retrieve", "--signal", "memory_bound", "--hardware", "h1000"], "unknown_hardware"),
        (["retrieve"], "invalid_request"),
        (["retrieve", "--metrics", "nonsense"], "invalid_request"),
        (["retrieve", "buld.log"], "invalid_request"),
        (["retrieve", "reports/softmax.ncu-rep"], "invalid_request"),
        (["retrieve", "--signal", "memory_bound", "--versions", "no.txt"], "invalid_request"),
        (["documents", "show", "doc_0"], "not_found"),
        (["ingest"], "invalid_request"),
        (["ingest", "pyproject.toml", "--hardware", "h1000"], "unknown_hardware"),
        (["ingest", "no-such-file"], "invalid_request"),
    ],
)
def test_invalid_request_has_error_shape_and_exit_code_2(
    data: Path, arguments: list[str], code: str
) -> None:
    assert_refused(kernlore(*arguments, "--json", data=data), code)


def assert_refused(ran: CommandResult, code: str) -> None:
    assert ran.code == 2
    assert ran.json.keys() == ERROR_KEYS
    assert ran.json["code"] == code
    assert ran.json["hint"]
    assert ran.json["message"] in ran.err


def test_separate_process_answers_as_in_process(data: Path) -> None:
    for arguments in (("signals",), ("documents", "list"), ("retrieve", "--q", "wombat stall")):
        ran = kernlore_process(*arguments, "--json", data=data)
        here = kernlore(*arguments, "--json", data=data)
        assert (ran.code, ran.err) == (here.code, here.err) == (0, "")
        assert ran.json == here.json or ran.json.keys() == here.json.keys()
    assert_refused(kernlore_process("documents", "show", "doc_0", "--json", data=data), "not_found")


def test_invalid_setting_is_named(tmp_path: Path) -> None:
    ran = kernlore_process("serve", "--port", "70000", data=tmp_path)
    assert ran.code == 2
    assert "port" in ran.err


def test_first_question_to_empty_directory_loads_the_built_in_knowledge(tmp_path: Path) -> None:
    small = copy_knowledge(tmp_path / "knowledge", ("guidance/memory-bound.md",))
    ran = kernlore(
        *("retrieve", "--signal", "memory_bound", "--json"),
        data=tmp_path / "new",
        environment={"KERNLORE_KNOWLEDGE_DIR": str(small)},
    )
    assert ran.code == 0 and ran.json["excerpts"]
    assert "reading 1 built-in documents" in ran.err


def test_used_port_is_refused_before_loading(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ran = kernlore_process("serve", "--port", port, data=tmp_path / "data")
    assert ran.code == 2
    assert port in ran.err
    assert not (tmp_path / "data" / "catalog.sqlite").exists()


def test_unreachable_service_is_reported(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    ran = kernlore("documents", "list", "--url", url, "--json")
    assert ran.code == 1
    assert ran.json["code"] == "unreachable"


# -- in process


def test_every_ingested_file_is_reported(data: Path, files: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    again = files / "memory.md"
    ran = kernlore("ingest", again, empty, "--hardware", "h100", "--json", data=data)
    outcomes = {entry["name"]: entry["outcome"] for entry in ran.json["files"]}
    assert outcomes == {"memory.md": "unchanged", "empty.txt": "refused"}
    refused = next(entry for entry in ran.json["files"] if entry["outcome"] == "refused")
    assert refused["error"].keys() == ERROR_KEYS
    assert ran.code == 1
    text = kernlore("ingest", again, "--hardware", "h100", data=data)
    assert text.code == 0
    assert "1 unchanged" in text.out
    assert "most useful to add:" in text.out


def test_signal_log_and_metrics_find_manual(data: Path, tmp_path: Path) -> None:
    about = ("--hardware", "h100", "--json", "-k", "20")
    by_signal = kernlore("retrieve", "--signal", "memory_bound", *about, data=data).json
    printed = kernlore("retrieve", "--signal", "memory_bound", *about[:2], data=data).out
    assert "] Memory of the H100, Memory bandwidth  " in printed  # the title once
    assert "coalesce" in by_signal["excerpts"][0]["text"]
    assert all("h200" not in excerpt["hardware"] for excerpt in by_signal["excerpts"])
    log = (
        "ptxas error   : Entry function 'k' uses too much shared data (0x41000 bytes, 0x38c00 max)"
    )
    by_log = kernlore("retrieve", "--log", "-", *about, data=data, stdin=log).json
    assert by_log["diagnosis"]["signals"]
    metrics = tmp_path / "metrics.json"
    metrics.write_text('{"made.up.metric": 3}')
    given = ("--metrics", metrics, "--metrics", "other.made.up=4.5")
    by_metrics = kernlore("retrieve", *given, *about, data=data).json
    assert set(by_metrics["diagnosis"]["unrecognised"]) == {"made.up.metric", "other.made.up"}
    counted = "4000,,cycles,9,100.00,,\n9000,,instructions,9,100.00,,\n"
    by_profile = kernlore("retrieve", "--profile", "-", *about, data=data, stdin=counted).json
    assert by_profile["profile"]["metrics"] == {"cycles": 4000.0, "instructions": 9000.0}


def test_answer_text_and_context(data: Path) -> None:
    text = kernlore("retrieve", "--signal", "memory_bound", "--hardware", "h100", data=data)
    assert "h100 > hopper > nvidia" in text.out
    assert "psg_" in text.out
    packed = kernlore("retrieve", "--q", "barrier", "--context", data=data)
    assert "divergent barrier" in packed.out
    assert "--context" not in packed.out


def test_outcome_is_recorded_for_answer(data: Path) -> None:
    answer = kernlore("retrieve", "--q", "barrier", "--json", data=data).json
    used = answer["excerpts"][0]["id"]
    output = ("--used", used, "--correct", "--speedup", "1.5", "--json")
    ran = kernlore("outcome", answer["retrieval_id"], *output, data=data)
    assert ran.code == 0, ran.err
    assert ran.json["retrieval_id"] == answer["retrieval_id"]


def test_passage_is_assigned_to_another_chip(data: Path, tmp_path: Path) -> None:
    copied = tmp_path / "data"
    copy_data_dir(data, copied)
    document_id = document_of(copied, "Wombat")
    passage = kernlore("documents", "passages", document_id, "--json", data=copied).json[0]
    change = ("--hardware", "h100", "--tag", "signal=memory_bound", "--json")
    ran = kernlore("documents", "correct", passage["id"], *change, data=copied)
    assert ran.json["hardware"] == ["h100"]
    about = ("--q", "wombat stall", "--hardware", "h100", "--json")
    found = kernlore("retrieve", *about, data=copied).json
    assert passage["id"] in found["excerpts"][0]["passages"]


def test_deleted_document_is_not_found(data: Path, tmp_path: Path) -> None:
    copied = tmp_path / "data"
    copy_data_dir(data, copied)
    document_id = document_of(copied, "Wombat")
    assert kernlore("documents", "delete", document_id, "--yes", data=copied).code == 0
    assert kernlore("documents", "show", document_id, data=copied).code == 2
    found = kernlore("retrieve", "--q", "wombat stall", "-k", "9", "--json", data=copied).json
    assert all("wombat" not in excerpt["text"].lower() for excerpt in found["excerpts"])


@pytest.mark.parametrize("answer", ["", "n\n"])
def test_deletion_needs_confirmation(data: Path, answer: str) -> None:
    document_id = document_of(data, "Wombat")
    ran = kernlore("documents", "delete", document_id, data=data, stdin=answer)
    assert ran.code == 1
    assert ran.err.endswith("nothing was deleted; use --yes to do it without a question\n")
    assert kernlore("documents", "show", document_id, data=data).code == 0


def test_truncated_input_is_an_error_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*_: Any, **__: Any) -> Any:
        raise EOFError

    monkeypatch.setattr("api.cli.main.LazyCommand.load", ended)
    assert main(["signals"]) == 1
    assert "the input ended too early" in capsys.readouterr().err


def test_ingested_file_does_not_replace_built_in_knowledge(data: Path, files: Path) -> None:
    key = "./Builtin/guidance/memory-bound.md"
    ran = kernlore("ingest", files / "memory.md", "--source-key", key, "--json", data=data)
    assert ran.code == 1
    (refused,) = ran.json["files"]
    assert refused["outcome"] == "refused"
    assert "built-in knowledge" in refused["error"]["message"] and refused["error"]["hint"]


def test_equal_names_in_one_command_are_refused(data: Path, tmp_path: Path) -> None:
    for folder, words in (("a", "Quartz alpha guide"), ("b", "Quartz beta notes")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "guide.md").write_text(f"# {words}\n\nAll about {words}.\n")
    ran = kernlore("ingest", tmp_path / "a", tmp_path / "b" / "guide.md", "--json", data=data)
    assert ran.code == 2 and "would be two versions of guide.md" in ran.err


def test_replacement_by_unrelated_file_is_reported(data: Path, tmp_path: Path) -> None:
    copied = tmp_path / "data"
    copy_data_dir(data, copied)
    for folder, words in (("a", "Quartz alpha guide"), ("b", "Onyx notes of links")):
        (tmp_path / folder).mkdir()
        output = " ".join(f"{word} {n} of {words}" for n, word in enumerate(words.split() * 4))
        (tmp_path / folder / "guide.md").write_text(f"# {words}\n\n{output}.\n")
    first = kernlore("ingest", tmp_path / "a" / "guide.md", "--hardware", "h100", data=copied)
    assert "replaces" not in first.out
    onyx = tmp_path / "b" / "guide.md"
    second = kernlore("ingest", onyx, "--hardware", "h100", data=copied)
    assert second.code == 1
    assert "would replace 'Quartz alpha guide', with which it shares" in second.out
    third = kernlore("ingest", onyx, "--hardware", "h100", "--replace", data=copied)
    assert "replaces 'Quartz alpha guide', with which it shares" in third.out


def test_links_out_of_a_folder_are_named_and_not_read(
    data: Path, files: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "wombat.md").symlink_to(files / "wombat.md")
    (tmp_path / "in" / "all").symlink_to(files)
    (tmp_path / "in" / "own.md").write_text("# Own\n\nAn own remedy.\n")
    ran = kernlore("ingest", tmp_path / "in", "--json", data=data)
    assert ran.code == 0
    assert [file["name"] for file in ran.json["files"]] == ["own.md"]
    lines = [line for line in ran.err.splitlines() if line.startswith("skipped")]
    assert [line.split(":")[0].split()[-1] for line in lines] == [
        str(tmp_path / "in" / name) for name in ("all", "wombat.md")
    ]
    kernlore("documents", "delete", ran.json["files"][0]["document_id"], "--yes", data=data)


def test_terminal_shows_log_signatures_of_json(data: Path, tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text(
        "compiling k.cu\n"
        "ptxas error : Entry function uses too much shared data (0x41000 bytes, 0x38c00 max)\n"
        "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    )
    request = ("retrieve", "--log", log, "--hardware", "h100")
    known = kernlore(*request, "--json", data=data).json["diagnosis"]["signatures"]
    assert {signature["line_number"] for signature in known} == {2, 3}
    shown = kernlore(*request, data=data).out
    for signature in known:
        assert signature["line"] in log.read_text() and signature["remedy"]
        assert (
            f"log line {signature['line_number']}: {signature['line']}\n"
            f"    {signature['title']}: {signature['remedy']}\n"
        ) in shown


def test_new_chip_from_template_to_facts(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "chip.toml"
    assert kernlore("hardware", "new", "acme-x1", "-o", file).code == 0
    assert kernlore("hardware", "new", "acme-x1", "-o", file).code == 2  # never overwritten
    text = file.read_text()
    stated = 'key = "compute_units"\nvalue = 8\nunit = "count"\nkind = "measured"\n'
    source = 'title = "Counted"\ndate = "2026-01-31"\n'
    file.write_text(f"{text}\n[[facts]]\n{stated}{source}")
    assert kernlore("hardware", "add", file, "--json", data=data).json["outcome"] == "created"
    facts = kernlore("hardware", "facts", "acme-x1", "--json", data=data).json["facts"]
    assert [(fact["key"], fact["value"]) for fact in facts] == [("compute_units", 8.0)]
    change = ("--set", facts[0]["id"], "12", "--json")
    kernlore("hardware", "facts", "acme-x1", *change, data=data)
    facts = kernlore("hardware", "facts", "acme-x1", "--json", data=data).json["facts"]
    assert facts[0]["value"] == 12.0
    # A value set by a person survives a repeated import of the description, and can be withdrawn.
    file.write_text(f'{text}\nsummary = "New."\n[[facts]]\n{stated}{source}')
    assert kernlore("hardware", "add", file, "--json", data=data).json["outcome"] == "updated"
    shown = kernlore("hardware", "facts", "acme-x1", data=data).out
    assert "compute_units = 12" in shown and "read as 8 (--withdraw " in shown
    back = ("--withdraw", facts[0]["id"], "--json")
    (fact,) = kernlore("hardware", "facts", "acme-x1", *back, data=data).json["facts"]
    assert (fact["value"], fact["origin"]) == (8.0, "spec")


def test_chip_needs_only_id(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "bare.toml"
    file.write_text('id = "acme-bare"\nlanguages = ["acasm"]\n')
    assert kernlore("hardware", "add", file, "--json", data=data).json["outcome"] == "created"
    shown = kernlore("hardware", "show", "acme-bare", "--json", data=data).json
    assert (shown["name"], shown["vendor"]) == ("acme-bare", "unknown")
    file.write_text('name = "Bare"\n')
    refused = kernlore("hardware", "add", file, data=data)
    assert refused.code != 0 and "id: missing" in refused.err and "bare.toml" in refused.err
    removed = kernlore("hardware", "remove", "acme-bare", "--yes", data=data)
    assert removed.out.splitlines() == ["removed acme-bare"]
    refused = kernlore("hardware", "remove", "acme-bare", "--json", data=data)
    assert refused.json["code"] == "unknown_hardware"


def test_proposed_facts_are_decided_in_bulk(data: Path, tmp_path: Path) -> None:
    chip, manual = tmp_path / "x2.toml", tmp_path / "x2.md"
    chip.write_text('id = "acme-x2"\nname = "Acme X2"\nvendor = "acme"\n')
    kernlore("hardware", "add", chip, data=data)
    table = "| Property | Value | Mode A |\n|---|---|---|\n| Memory size | 12 GB | 6 GB |\n"
    manual.write_text(f"# The Acme X2\n\n{table}\nThe L2 cache is 16 MB.\n")
    kernlore("ingest", manual, "--hardware", "acme-x2", data=data)
    facts = ("hardware", "facts", "acme-x2")
    shown = kernlore(*facts, "--proposed", "--key", "memory_size", data=data).out
    assert "memory_size = 12 GiB" in shown and "not clearly about acme-x2: Mode A" in shown
    assert "The Acme X2" in shown and "l2_size" not in shown
    assert kernlore(*facts, "--accept-all", "--reject-all", data=data).code == 2
    taken = kernlore(*facts, "--accept-all", "--json", data=data).json
    assert {f["key"] for f in taken["facts"]} == {"memory_size", "l2_size"}
    assert [f["value"] for f in taken["left"]] == [6 * 2.0**30]
    gone = kernlore(*facts, "--reject-all", "--subject", "mode a", "--json", data=data).json
    assert [f["status"] for f in gone["facts"]] == ["rejected"]
    assert "l2_size = 16 MiB" in kernlore(*facts, data=data).out


def test_detection_names_devices(data: Path) -> None:
    assert any(d["kind"] == "cpu" for d in kernlore("hardware", "detect", "--json", data=data).json)


def test_settings_have_their_source(tmp_path: Path) -> None:
    shown = kernlore("config", "show", "--json", data=tmp_path).json
    assert shown["data_dir"] == shown["data_dir"] | {"value": str(tmp_path), "source": "--data-dir"}
    assert shown["port"]["source"] == "default"


def test_knowledge_tree_counts_documents(data: Path) -> None:
    tree = kernlore("knowledge", "tree", "hardware", "--json", data=data).json
    assert {child["path"] for child in tree["children"]} >= {"hardware/h100", "hardware/h200"}


def test_index_is_rebuilt_and_passes_doctor(data: Path) -> None:
    report = kernlore("reindex", "--json", data=data).json
    assert report["added"] > 0
    ran = kernlore("doctor", "--json", data=data)
    assert ran.code == 0, ran.json
    index = next(check for check in ran.json["checks"] if check["name"] == "vector index")
    assert "probes" in index["detail"]


@pytest.mark.embedded
def test_doctor_finds_lost_original_and_rebuilds_lost_snapshot(data: Path, tmp_path: Path) -> None:
    broken = tmp_path / "data"
    copy_data_dir(data, broken)
    shutil.rmtree(broken / FOLDER)
    lose_files(broken)
    ran = kernlore("doctor", "--json", data=broken)
    assert ran.code == 1
    wrong = {check["name"] for check in ran.json["checks"] if not check["ok"]}
    assert wrong == {"originals"}
    assert list((broken / FOLDER).iterdir())
    assert all(check["hint"] for check in ran.json["checks"] if not check["ok"])
