"""Sessions of other tools: what their tools wrote becomes steps; secrets do not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kb.errors import InvalidRequest
from skills.trajectories.sessions import Session, read_session, session_of

pytest.importorskip("detect_secrets")

FIRST = (
    '#include "kernlore_abi.h"\n'
    "KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {\n"
    "  return slow(t);\n}\n"
)
SECOND = FIRST.replace("slow", "fast")
# Put together here, so that no file of the repository holds the form of a key.
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
PASSWORD = "hunter2" * 2


def claude(kind: str, *content: dict[str, Any]) -> dict[str, Any]:
    message = {"role": kind, "content": list(content)}
    return {"type": kind, "uuid": "u", "sessionId": "s", "message": message}


def use(identity: str, name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": name, "input": given}


def result(identity: str, text: str, *, error: bool = False) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": text, "is_error": error}


def say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def sources(session: Session) -> list[tuple[int, str]]:
    return [(step.parent, step.source) for step in session.steps]


def test_claude_code_writes_and_edits_become_steps() -> None:
    rows = [
        {"type": "summary", "summary": "kernels", "leafUuid": "u"},
        claude(
            "assistant",
            say("A first kernel."),
            use("1", "Write", file_path="/w/k.cpp", content=FIRST),
        ),
        claude("user", result("1", "created")),
        claude(
            "assistant", use("2", "Edit", file_path="/w/k.cpp", old_string="absent", new_string="x")
        ),
        claude("user", result("2", "String to replace not found", error=True)),
        claude(
            "assistant",
            say("Now vectors."),
            use("3", "Edit", file_path="/w/k.cpp", old_string="slow", new_string="fast"),
        ),
        claude("user", result("3", "ok")),
        claude("assistant", use("4", "Bash", command="python bench.py")),
        claude("user", result("4", "speed-up: 3.5 over the reference")),
        claude("assistant", use("5", "Write", file_path="/w/notes.md", content="fast now")),
    ]
    session = session_of(rows, name="a.jsonl")
    assert session.form == "claude-code" and sources(session) == [(0, FIRST), (1, SECOND)]
    assert [step.plan for step in session.steps] == ["A first kernel.", "Now vectors."]
    assert [step.claimed for step in session.steps] == [None, 3.5]
    assert session.steps[1].provenance["session"] == "a.jsonl"
    assert session.steps[1].language == "cpp"
    assert any("notes.md" in reason for reason in session.left_out)


def test_codex_patches_and_shell_become_steps() -> None:
    patch = (
        "*** Begin Patch\n*** Update File: k.cpp\n@@\n-  return slow(t);\n+  return fast(t);\n"
        "*** End Patch\n"
    )
    lost = patch.replace("slow", "missing")
    command = json.dumps(f"cat > s.cpp <<'E'\n{FIRST}E")
    scripted = f"text(await tools.exec_command({{cmd: {command}}}));"

    def item(**payload: Any) -> dict[str, Any]:
        return {"timestamp": "t", "type": "response_item", "payload": payload}

    shell = {"command": ["bash", "-lc", f"cat > k.cpp <<'EOF'\n{FIRST}EOF\n"]}
    rows = [
        {"timestamp": "t", "type": "session_meta", "payload": {"id": "x"}},
        item(type="function_call", name="shell", arguments=json.dumps(shell), call_id="1"),
        item(type="function_call", name="shell", arguments="{}", call_id="2"),
        item(type="custom_tool_call", name="apply_patch", input=patch, call_id="3"),
        item(type="custom_tool_call", name="apply_patch", input=lost, call_id="4"),
        {
            "type": "event_msg",
            "payload": {"type": "patch_apply_end", "call_id": "4", "success": False},
        },
        item(type="custom_tool_call", name="exec", input=scripted, call_id="5"),
        item(type="message", role="assistant", content=[{"type": "output_text", "text": "Done"}]),
    ]
    assert sources(session_of(rows)) == [(0, FIRST), (1, SECOND), (0, FIRST)]


@pytest.mark.parametrize("form", ["messages", "openhands", "swe-agent"])
def test_other_transcripts_become_steps(form: str, tmp_path: Path) -> None:
    create = {"command": "create", "path": "/k.cpp", "file_text": FIRST}
    change = {"command": "str_replace", "path": "/k.cpp", "old_str": "slow", "new_str": "fast"}

    def call(given: dict[str, Any]) -> dict[str, Any]:
        function = {"name": "str_replace_editor", "arguments": json.dumps(given)}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "function": function}],
        }

    whole: Any = {
        "messages": {"messages": [{"role": "user", "content": "go"}, call(create), call(change)]},
        "openhands": [
            {"source": "agent", "action": "write", "args": {"path": "/k.cpp", "content": FIRST}},
            {"source": "agent", "observation": "write", "content": "ok"},
            {"source": "agent", "action": "edit", "args": {**change, "thought": "Vectors."}},
        ],
        "swe-agent": {
            "trajectory": [
                {
                    "thought": "First.",
                    "action": f"cat <<EOF > /k.cpp\n{FIRST}EOF\n",
                    "observation": "",
                },
                {
                    "thought": "Then.",
                    "action": f"cat > /k.cpp <<'EOF'\n{SECOND}EOF",
                    "observation": "1.5x",
                },
            ]
        },
    }[form]
    file = tmp_path / "session.json"
    file.write_text(json.dumps(whole))
    session = read_session(file)
    assert session.form == form and sources(session) == [(0, FIRST), (1, SECOND)]


@pytest.mark.parametrize("structured", [True, False])
def test_commands_in_texts_copy_and_substitute(structured: bool) -> None:
    """mini-swe-agent: one command in each text; its output is the next message of the user."""
    commands = [
        f"cat <<'EOF' > v1.cpp && cp v1.cpp k.cpp && ./check k.cpp\n{FIRST}EOF",
        f"cat <<'EOF' > v2.cpp && mv v2.cpp k.cpp\n{SECOND}EOF",
        "sed 's/fast(t)/faster(t)/; s/int/long/' k.cpp > v3.cpp && sed -n '1,9p' v3.cpp",
        'sed -i "s/faster/$NAME/" v3.cpp',
        "cp made_by_a_script.cpp k.cpp",
    ]
    rows = []
    for command in commands:
        text = f"THOUGHT: next.\n\n```mswea_bash_command\n{command}\n```"
        extra = {"extra": {"actions": [{"command": command}]}} if structured else {}
        rows.append({"role": "assistant", "content": text, **extra})
        rows.append({"role": "user", "content": "<output>\nspeedup: 2.5x\n</output>"})
    session = session_of([{"messages": rows, "trajectory_format": "mini-swe-agent-1.1"}])
    third = SECOND.replace("fast(t)", "faster(t)").replace("int", "long", 1)
    assert sources(session) == [(0, FIRST), (1, SECOND), (2, third)]
    assert [step.claimed for step in session.steps] == [2.5, 2.5, 2.5]
    assert [text.partition(":")[0] for text in session.left_out] == ["v3.cpp", "k.cpp"]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("'s/a+b/c/'", "a+b a+b"),
        ("'s/a+b/c/g; s/x\\*y/z/'", "a+b a+b x*y"),
        ("'s|/tmp|/var|'", "/tmp"),
        ("'s/^ *a/b/'", None),  # a count
        ("'s/\\(a\\)/\\1/'", None),
        ("'/a/d'", None),
        ("'s/a/&&/'", None),
    ],
)
def test_substitutions_are_those_of_sed(script: str, text: str | None, tmp_path: Path) -> None:
    source = FIRST + (text or "a")
    file = tmp_path / "k.cpp"
    file.write_text(source)
    done = subprocess.run(f"sed {script} {file}", shell=True, capture_output=True, text=True)
    command = f"cat <<EOF > k.cpp\n{source}\nEOF\nsed {script} k.cpp > n.cpp"
    rows = [{"role": "assistant", "content": f"```bash\n{command}\n```"}]
    steps = session_of(rows).steps
    if text is None:
        assert [step.name for step in steps] == ["k.cpp"]
    else:
        assert steps[1].source == f"{done.stdout.rstrip()}\n" and steps[1].source != source


def test_code_blocks_of_a_chat_are_versions() -> None:
    rows = [
        {"role": "user", "content": f"Make this faster:\n```cpp\n{FIRST}```"},
        {
            "role": "assistant",
            "content": f"Vectors.\n```cpp\n{FIRST}```\nIt calls\n```cpp\nf();\n```",
        },
        {"role": "assistant", "content": f"Threads.\n```c++\n{SECOND}```"},
    ]
    session = session_of(rows)
    assert sources(session) == [(0, FIRST), (1, SECOND)]
    assert session.steps[1].plan.startswith("Threads.")


def test_secrets_are_removed_from_every_text() -> None:
    source = FIRST.replace("return", f'/* {AWS} */ const char *password = "{PASSWORD}"; return')
    pem = "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEabc\n-----END RSA " + "PRIVATE KEY-----"
    source += "// password = '" + "ab12" * 100_000 + "'\n"
    plan = f"Uses x-{AWS}+more, https://bob:{PASSWORD}@host/ and\n{pem}\nfor the upload."
    rows = [claude("assistant", say(plan), use("1", "Write", file_path="k.cpp", content=source))]
    session = session_of(rows)
    kept = json.dumps([vars(step) for step in session.steps])
    for secret in (AWS, PASSWORD, "MIIEabc", "x-", "+more", "ab12"):
        assert secret not in kept
    assert session.secrets >= 4 and "for the upload." in session.steps[0].plan
    assert session.steps[0].source.startswith("#include") and "fast" not in kept


def test_result_of_an_edit_shows_the_text_before_it() -> None:
    call = use("1", "Edit", file_path="k.cpp", old_string="slow", new_string="fast")
    shown = {"filePath": "k.cpp", "originalFile": FIRST}
    rows = [
        claude("assistant", call),
        {**claude("user", result("1", "ok")), "toolUseResult": shown},
        claude("assistant", use("2", "Bash", command=f"cat > n.cpp <<'E'\n{FIRST}E\nmake")),
        claude("user", result("2", "make failed", error=True)),
    ]
    assert sources(session_of(rows)) == [(0, FIRST), (1, SECOND), (0, FIRST)]


def test_here_documents_that_append_or_never_end() -> None:
    def commands(*lines: str) -> list[dict[str, Any]]:
        return [claude("assistant", use("1", "Bash", command=line)) for line in lines]

    document = f"<<'E'\n{FIRST}E"
    whole = (
        f"tee a.cpp > /dev/null {document}\ncat {document[:5]} 2>/dev/null > b.cpp{document[5:]}"
    )
    hostile = ("tee " * 100_000 + "<<", "cat >a <<E " * 100_000, "cat >a <<E\n" * 100_000)
    session = session_of(commands(whole, f"cat >> a.cpp {document}", *hostile))
    assert [(step.name, step.source) for step in session.steps] == [
        ("a.cpp", FIRST),
        ("b.cpp", FIRST),
    ]
    assert [reason.partition(":")[0] for reason in session.left_out] == ["a.cpp"]


def test_links_of_a_folder_are_not_read(tmp_path: Path) -> None:
    secret, folder = tmp_path / "private.txt", tmp_path / "run"
    secret.write_text("private words\ndef kernel_function(x): ...\n")
    folder.mkdir()
    (folder / "kernel_round_1.py").write_text("def kernel_function(x):\n    return x\n")
    for name in ("kernel_round_2.py", "round001_opt_reply.txt"):
        (folder / name).symlink_to(secret)
    session = read_session(folder)
    assert len(session.steps) == 1 and "private" not in repr(session)


def test_edit_of_unseen_text_is_left_out() -> None:
    rows = [
        claude("assistant", use("1", "Edit", file_path="k.cpp", old_string="a", new_string="b")),
        claude("assistant", use("2", "Write", file_path="n.cpp", content=FIRST)),
    ]
    session = session_of(rows)
    assert [step.name for step in session.steps] == ["n.cpp"]
    assert any("does not show" in reason for reason in session.left_out)
    with pytest.raises(InvalidRequest, match="no candidate"):
        session_of(rows[:1])
    with pytest.raises(InvalidRequest, match="no known form"):
        session_of([{"hello": 1}])


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        session_of([{"role": "tool", "content": deep}, {"role": "user", "content": ""}])
    (tmp_path / "s.json").write_text("[" * 100_000)
    with pytest.raises(InvalidRequest, match="no known form"):
        read_session(tmp_path / "s.json")


def test_openevolve_keeps_parents_and_claims(tmp_path: Path) -> None:
    module = "class ModelNew:\n    pass\n"
    checkpoints: dict[str, list[tuple[str, str | None, int, dict[str, float]]]] = {
        "checkpoint_2": [("a", None, 0, {})],
        "checkpoint_10": [
            ("b", "a", 5, {"speedup": 2.5, "combined_score": 9}),
            ("a", None, 0, {"error": 0.0}),
            ("c", "b", 7, {}),
        ],
    }
    for checkpoint, programs in checkpoints.items():
        folder = tmp_path / "checkpoints" / checkpoint / "programs"
        folder.mkdir(parents=True)
        for name, parent, iteration, metrics in programs:
            code = "x = 1\n" if name == "c" else f"{module}# {name}\n"
            row = {
                "id": name,
                "code": code,
                "language": "python",
                "parent_id": parent,
                "iteration_found": iteration,
                "metrics": metrics,
                "changes_description": f"change {name}",
            }
            (folder / f"{name}.json").write_text(json.dumps(row))
    session = read_session(tmp_path)
    assert sources(session) == [(0, f"{module}# a\n"), (1, f"{module}# b\n")]
    assert [step.claimed for step in session.steps] == [None, 2.5]
    assert session.steps[1].plan == "change b" and "program c" in session.left_out[0]


def test_kernel_agent_rounds_follow_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "workers" / "w0" / "artifacts"
    folder.mkdir(parents=True)
    for number in (0, 1, 10):
        text = f"import triton\n\ndef kernel_function(x):\n    return x * {number}\n"
        (folder / f"kernel_round_{number}.py").write_text(text)
    (folder / "round001_opt_reply.txt").write_text("Larger blocks.\n```python\ncode\n```\n")
    session = read_session(tmp_path)
    assert [step.parent for step in session.steps] == [0, 1, 2]
    assert session.steps[1].plan == "Larger blocks." and session.steps[0].language == "triton"
    assert "class ModelNew" in session.steps[0].source
    compile(session.steps[0].source, "kernel.py", "exec")


def test_git_history_of_one_file(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(
            ["git", *who, "-C", str(tmp_path), *arguments], check=True, capture_output=True
        )

    git("init", "-q")
    for text, message in ((FIRST, "first"), (SECOND, "vectors, 2.5x faster"), ("gone\n", "x")):
        (tmp_path / "k.cpp").write_text(text)
        git("add", "k.cpp")
        git("commit", "-q", "-m", message)
    session = read_session(tmp_path, path="k.cpp")
    assert sources(session) == [(0, FIRST), (1, SECOND)]
    assert [step.claimed for step in session.steps] == [None, 2.5]
    assert len(session.steps[0].provenance["commit"]) == 40 and len(session.left_out) == 1
