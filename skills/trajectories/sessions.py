"""Sessions of other tools as steps of an external trajectory: transcripts of coding agents, folders
of OpenEvolve and KernelAgent, and the history of one kernel file.

A transcript is replayed: what its tools wrote and edited gives the versions of each file, and every
version that has the entry of a candidate is a step. Texts are scanned for secrets before anything
is stored. What a session says about speed is a claim, and where a step comes from is provenance;
neither is a measurement. Nothing of a session runs here.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from kb.errors import InvalidRequest, Unavailable
from optimizer.evaluation.bundle import SUFFIXES, default_entry, language_of
from optimizer.search.synthesizers.llm.settings import REMOVED, Redaction
from skills.trajectories.external import MAX_PLAN, MAX_STEPS
from skills.trajectories.git_history import Repository, claimed_speedup

Json = Mapping[str, Any]
MAX_FILE = 64 * 1024 * 1024
MAX_FILES = 5_000
MAX_OUTPUT = 20_000  # characters of an output in which a claim is looked for
PYTHON_ENTRIES = ("ModelNew", "kernel_function", "custom_kernel")
C_ENTRY = default_entry("kernel.cpp")
# Transcripts come from strangers, so no pattern may try a place of a long text more than once.
_NUMBERED = re.compile(r"^[ \t]*\d+(?:\u2192|\t|: )", re.MULTILINE)
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")
_WRITTEN = re.compile(
    r"(?:(?<![\d&>])>(?P<more>>)?|\btee(?P<added> -a)?\s)\s*(?P<path>[\w./~][\w./~-]*)"
)
_FENCED = re.compile(r"^```([\w+-]*)[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELLS = ("bash", "sh", "shell", "console", "mswea_bash_command")
_FENCED_FILES = {
    "python": ".py",
    "py": ".py",
    "triton": ".py",
    "c": ".c",
    "cuda": ".cu",
    "cu": ".cu",
}
_FENCED_FILES |= dict.fromkeys(("cpp", "c++", "cc"), ".cpp")
_QUOTED = re.compile(r"\"(?:\\.|[^\"\\])*(?:\"|\Z)")
_WORD_REST = re.compile(r"\A[\w+/=-]+")
_PEM = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
UNKNOWN = "\0"  # replaced text of an edit after which a file is unknown
Kind = Literal["text", "write", "edit", "patch", "read", "seen", "output", "copy", "substitute"]


@dataclass(frozen=True)
class SessionStep:
    """A candidate of a session. `parent` is the number of the earlier step that it changes, 0 for
    none. `claimed` is the speed-up that the session states for it."""

    parent: int
    name: str
    source: str
    entry: str
    plan: str = ""
    claimed: float | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def language(self) -> str:
        return language_of(PurePosixPath(self.name), self.source)


@dataclass(frozen=True)
class Session:
    """The candidates of a session. `form` names its format; `left_out` says which files were no
    candidates; `secrets` counts the places at which one was removed."""

    form: str
    steps: tuple[SessionStep, ...]
    left_out: tuple[str, ...] = ()
    secrets: int = 0


@dataclass(frozen=True)
class _Event:
    """A part of a transcript, in order: a text of the agent, a file operation, or an output.

    A copy has the path of its source in `old`, a substitution also the script of sed in `text`.
    """

    kind: Kind
    text: str = ""
    path: str = ""
    old: str = ""
    everywhere: bool = False


def read_session(place: Path, entry: str = "", path: str = "") -> Session:
    """The session in a file or folder. `entry` names the class or function of candidates; `path` is
    the file of a git repository whose versions are the candidates. Raises InvalidRequest for a form
    that is not known, and Unavailable without the scanner of secrets."""
    if path:
        return _clean(_of_history(Repository(place), path, entry))
    if place.is_dir():
        return _clean(_of_folder(place, entry))
    text = _file(place)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        rows = [row for line in text.splitlines() if (row := _row(line)) is not None]
        return session_of(rows, entry, place.name)
    if isinstance(whole, dict):
        whole = whole.get("loglines", [whole])  # how a session of the web is exported
    return session_of(whole if isinstance(whole, list) else [whole], entry, place.name)


def session_of(rows: Sequence[Any], entry: str = "", name: str = "") -> Session:
    """The session of a transcript's parsed lines, or of the messages of a list. Raises as
    `read_session`."""
    objects = [row for row in rows if isinstance(row, dict)]
    for form, matches, events in FORMS:
        if any(map(matches, objects[:50])):
            try:
                found = list(events(objects))
                if all(event.kind in ("text", "output") for event in found):
                    found = list(_code_blocks(found))
                return _clean(_replayed(form, found, entry, name))
            except RecursionError as error:
                hint = "Leave out the message whose lists lie so deep in each other."
                raise InvalidRequest("the session is nested too deeply", hint=hint) from error
    raise InvalidRequest(
        f"{name or 'the session'} has no known form",
        hint="Known are transcripts of Claude Code and Codex, lists of chat messages, OpenHands"
        " events, SWE-agent trajectories, and folders of OpenEvolve and KernelAgent.",
    )


def _file(path: Path) -> str:
    if path.stat().st_size > MAX_FILE:
        raise InvalidRequest(
            f"{path} is larger than {MAX_FILE:,} bytes", hint="Cut it at a turn of the agent."
        )
    return path.read_text(encoding="utf-8", errors="replace")


def _row(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # a line that was cut off, or a remark between the lines


# -- transcripts as events


def _claude(rows: Sequence[Json]) -> Iterator[_Event]:
    """Lines of Claude Code: `user` and `assistant` wrap messages of content blocks. The result of
    an edit may have the text before it."""
    lines = [row for row in rows if isinstance(row.get("message"), dict)]
    before = {
        str(block.get("tool_use_id")): str(row["toolUseResult"]["originalFile"])
        for row in lines
        if _inner(row, "toolUseResult").get("originalFile")
        for block in _blocks(row["message"].get("content"))
    }
    yield from _messages([row["message"] for row in lines], before)


def _codex(rows: Sequence[Json]) -> Iterator[_Event]:
    """Lines of a Codex rollout: the items of the protocol log."""
    items = [row.get("payload") for row in rows if row.get("type") == "response_item"]
    payloads = [item for item in items if isinstance(item, dict)]
    ends = [_inner(row, "payload") for row in rows if row.get("type") == "event_msg"]
    failed = {
        str(end.get("call_id"))
        for end in ends
        if end.get("type") == "patch_apply_end"
        and (end.get("success") is False or end.get("status") == "failed")
    }
    for item in payloads:
        kind = item.get("type")
        if kind == "message" and item.get("role") == "assistant":
            yield _Event("text", _text(item.get("content")))
        elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
            if str(item.get("call_id")) not in failed:
                given = item.get("arguments", item.get("input", item.get("action")))
                yield from _call(str(item.get("name", "")), given)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            yield _Event("output", _text(item.get("output")))


def _messages(rows: Sequence[Json], before: Mapping[str, str] | None = None) -> Iterator[_Event]:
    """Messages of a chat: with content blocks, or with `tool_calls`. Calls whose result is an error
    changed nothing, except commands, which may have written a file before they failed. `before` has
    the text of a file before an edit, by id of the call."""
    results = {
        str(block.get("tool_use_id")): block
        for row in rows
        for block in _blocks(row.get("content"))
        if block.get("type") == "tool_result"
    }
    answered = False  # by a command in a text, whose output is the next message of the user
    for row in rows:
        content, said = row.get("content"), row.get("role") == "assistant"
        if answered and row.get("role") == "user":
            yield _Event("output", _text(content))
        answered = False
        if said and isinstance(content, str):
            yield _Event("text", content)
            commands = () if row.get("tool_calls") else _commands_in_text(row, content)
            for command in commands:
                answered = True
                yield from _command(command)
        for block in _blocks(content):
            text = (before or {}).get(str(block.get("id")))
            path = _first(_inner(block, "input"), "file_path", "path")
            if text is not None and path:
                yield _Event("seen", text, path)
            yield from _block(block, said, results)
        for call in row.get("tool_calls") or ():
            function = call.get("function", call) if isinstance(call, dict) else {}
            yield from _call(str(function.get("name", "")), function.get("arguments"))
        if row.get("role") == "tool":
            yield _Event("output", _text(content))


def _commands_in_text(row: Json, content: str) -> list[str]:
    """The commands of an agent that writes them into its text: the list that mini-swe-agent stores
    beside the message, else the fenced blocks of a shell."""
    actions = _blocks(_inner(row, "extra").get("actions"))
    if actions:
        return [_first(action, "command") for action in actions]
    return [text for name, text in _FENCED.findall(content) if name.lower() in _SHELLS]


def _block(block: Json, said: bool, results: Mapping[str, Json]) -> Iterator[_Event]:
    kind, result = block.get("type"), results.get(str(block.get("id")), {})
    if kind == "text" and said:
        yield _Event("text", str(block.get("text", "")))
    elif kind == "tool_use" and result.get("is_error"):
        yield from _command(_first(_inner(block, "input"), "command", "cmd"))
    elif kind == "tool_use":
        text = _text(result.get("content"))
        yield from _call(str(block.get("name", "")), block.get("input"), text)
    elif kind == "tool_result":
        yield _Event("output", _text(block.get("content")))


def _openhands(rows: Sequence[Json]) -> Iterator[_Event]:
    """Events of OpenHands: actions with `args`, then their observations."""
    for row in rows:
        given = row.get("args")
        if isinstance(given, dict) and row.get("action"):
            thought = given.get("thought") or (
                given.get("content") if row["action"] == "message" else ""
            )
            if thought and row.get("source") != "user":
                yield _Event("text", str(thought))
            yield from _call(str(row["action"]), given)
        elif row.get("observation"):
            yield _Event("output", _text(row.get("content")))


def _swe_agent(rows: Sequence[Json]) -> Iterator[_Event]:
    """A trajectory of SWE-agent: turns of thought, action and observation."""
    turns = [turn for row in rows for turn in row.get("trajectory") or () if isinstance(turn, dict)]
    for turn in turns:
        yield _Event("text", _text(turn.get("thought")))
        yield from _command(_text(turn.get("action")))
        yield _Event("output", _text(turn.get("observation")))


FORMS: tuple[
    tuple[str, Callable[[Json], bool], Callable[[Sequence[Json]], Iterator[_Event]]], ...
] = (
    ("codex", lambda row: row.get("type") in ("session_meta", "response_item"), _codex),
    (
        "claude-code",
        lambda row: row.get("type") in ("user", "assistant") and "message" in row,
        _claude,
    ),
    ("swe-agent", lambda row: isinstance(row.get("trajectory"), list), _swe_agent),
    ("openhands", lambda row: "args" in row and "action" in row, _openhands),
    (
        "messages",
        lambda row: isinstance(row.get("messages"), list),
        lambda rows: _messages([m for row in rows for m in row.get("messages") or ()]),
    ),
    ("messages", lambda row: row.get("role") in ("assistant", "user", "system"), _messages),
)


def _blocks(content: Any) -> list[Json]:
    return [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _text(value.get("text", value.get("output", value.get("content", ""))))
    return "\n".join(map(_text, value)) if isinstance(value, list) else ""


def _call(name: str, given: Any, result: str = "") -> Iterator[_Event]:
    """The file operations of a tool call, recognised by the fields of its input: names of tools
    differ, these do not."""
    if isinstance(given, str):
        parsed = _row(given)
        given = parsed if parsed is not None else {"input": given}
    if isinstance(given, list):
        given = {"command": given}
    if not isinstance(given, dict):
        return
    yield from _file_operation(name, given, result)
    patch = _first(given, "patch", "input", "diff")
    scripted = _QUOTED.findall(patch) if "tools." in patch else ()
    for quoted in scripted:  # a script that calls tools with texts
        yield from _command(str(_row(quoted) or ""))
    if "*** Begin Patch" in patch and not scripted:
        yield _Event("patch", patch)
    command = given.get("command", given.get("cmd", given.get("code")))
    if isinstance(command, list):
        command = "\n".join(map(str, command))
    if isinstance(command, str):
        yield from _command(command)


def _file_operation(name: str, given: Json, result: str) -> Iterator[_Event]:
    path = _first(given, "file_path", "path", "filename", "file", "target_file")
    whole = _first(given, "content", "file_text", "contents", "new_content", "code_edit")
    edits = given["edits"] if isinstance(given.get("edits"), list) else [given]
    changes = [
        _Event(
            "edit",
            _first(edit, "new_string", "new_str"),
            path,
            _first(edit, "old_string", "old_str"),
            bool(edit.get("replace_all")),
        )
        for edit in edits
        if isinstance(edit, dict)
    ]
    kind = str(given.get("command", "")) if name.startswith("str_replace") else ""
    if not path:
        return
    if kind == "insert":
        yield _Event("edit", "", path, UNKNOWN)
    elif any(change.old for change in changes):
        yield from changes
    elif whole and kind in ("", "create"):
        yield _Event("write", whole, path)
    elif result and not {"offset", "limit"} & given.keys():
        yield _Event("read", result, path)


def _first(given: Json, *names: str) -> str:
    values = (given.get(name) for name in names)
    return next((value for value in values if isinstance(value, str) and value), "")


def _command(command: str) -> Iterator[_Event]:
    """The files that a shell command writes from its own text."""
    if "*** Begin Patch" in command:
        yield _Event("patch", command)
        return
    lines = iter(command.split("\n"))
    for line in lines:
        document, target = _HERE_DOCUMENT.search(line), _WRITTEN.search(line)
        if document and target and re.search(r"\b(?:cat|tee)\b", line):
            text: list[str] = []
            for inner in lines:
                if inner.rstrip() == document[2]:
                    if target["more"] or target["added"]:
                        yield _Event("edit", "", target["path"], UNKNOWN)
                    else:
                        yield _Event("write", "".join(text), target["path"])
                    break
                text.append(f"{inner}\n")
        yield from _derived(line)


def _derived(line: str) -> Iterator[_Event]:
    """The files that the commands `cp`, `mv` and `sed` of a line make of other files."""
    try:
        words = list(shlex.shlex(line, punctuation_chars=True))
    except ValueError:
        return  # a quotation that goes on in the next line
    for is_operator, group in groupby(words, lambda word: word in ("&&", "||", ";", "|")):
        command = [] if is_operator else list(group)
        arguments = [word for word in command[1:] if word[:1] != "-"]
        if command[:1] in (["cp"], ["mv"]) and len(arguments) == 2:
            yield _Event("copy", path=arguments[1], old=arguments[0])
        elif command[:1] == ["sed"] and len(arguments) >= 2:
            inside, script, source = "-i" in command, arguments[0], arguments[1]
            if len(arguments) == 4 and arguments[2] == ">":
                yield _Event("substitute", script, arguments[3], source)
            elif inside:
                yield _Event("substitute", script, source, source)


def _code_blocks(events: Iterable[_Event]) -> Iterator[_Event]:
    """The fenced code of a session without files, each block as a version of one kernel file."""
    for event in events:
        yield event
        blocks = _FENCED.findall(event.text) if event.kind == "text" else ()
        for language, text in blocks:
            if suffix := _FENCED_FILES.get(language.lower()):
                yield _Event("write", text, f"kernel{suffix}")


# -- events as versions of files


@dataclass
class _Files:
    """The files of a session as its tools leave them; None for one of unknown content."""

    texts: dict[str, str | None] = field(default_factory=dict)

    def changed(self, event: _Event) -> list[str]:
        """Apply a file operation; returns the paths that have a new version."""
        if event.kind in ("write", "seen"):
            return self._set(event.path, event.text)
        if event.kind == "read":
            known = self.texts.get(event.path)
            bare = _NUMBERED.sub("", event.text)
            return [] if known == bare or known == bare + "\n" else self._set(event.path, bare)
        if event.kind == "edit":
            return self._edited(event)
        if event.kind in ("copy", "substitute"):
            text = self.texts.get(event.old)
            if event.kind == "substitute" and text is not None:
                text = _substituted(text, event.text)
            relevant = {event.old, event.path} & self.texts.keys()
            return self._set(event.path, text) if relevant else []
        return self._patched(event.text) if event.kind == "patch" else []

    def _set(self, path: str, text: str | None) -> list[str]:
        same = self.texts.get(path) == text
        self.texts[path] = text
        return [] if same or text is None else [path]

    def unknown(self) -> list[str]:
        """Paths of files whose text the session does not show."""
        return [path for path, text in self.texts.items() if text is None]

    def _edited(self, event: _Event) -> list[str]:
        known = self.texts.get(event.path)
        if known is None and not event.old:
            return self._set(event.path, event.text)
        if known is None or not event.old or event.old not in known:
            return self._set(event.path, None)
        count = -1 if event.everywhere else 1
        return self._set(event.path, known.replace(event.old, event.text, count))

    def _patched(self, patch: str) -> list[str]:
        """Apply a patch of Codex: files that are added, and hunks of files that are known."""
        changed: list[str] = []
        inside = patch.partition("*** Begin Patch")[2].partition("*** End Patch")[0]
        parts = re.split(r"^\*\*\* (Add|Update|Delete) File: (.+)$", inside, flags=re.MULTILINE)
        for action, path, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            name = path.strip()
            lines = body.strip("\n").split("\n")
            if action == "Add":
                changed += self._set(name, "".join(f"{line[1:]}\n" for line in lines))
            elif action == "Update":
                changed += self._set(name, _with_hunks(self.texts.get(name), lines))
        return changed


def _with_hunks(text: str | None, lines: Sequence[str]) -> str | None:
    """The text with the hunks of a patch; None if one of them does not fit."""
    hunks: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("@@"):
            hunks.append([])
        elif not line.startswith("*** "):
            hunks[-1].append(line)
    for hunk in filter(None, hunks):
        old = "".join(f"{line[1:]}\n" for line in hunk if line[:1] in (" ", "-", ""))
        new = "".join(f"{line[1:]}\n" for line in hunk if line[:1] in (" ", "+", ""))
        if text is None or old not in text:
            return None
        text = text.replace(old, new, 1)
    return text


def _substituted(text: str, script: str) -> str | None:
    """The text after the substitutions of a quoted sed script; None for a script with anything
    else, or with a variable of the shell.

    Groups, sets and counts of patterns are not read."""
    if script[:1] not in ("'", '"') or (script[0] == '"' and "$" in script):
        return None
    for part in filter(None, (piece.strip() for piece in script[1:-1].split(";"))):
        pieces = part.split(part[1:2] or "/")
        if part[0] != "s" or len(pieces) != 4 or pieces[3] not in ("", "g"):
            return None
        _, old, new, flags = pieces
        if re.search(r"\\[^*.\[\]^$]|(?<!\\)[\[*]", old) or re.search(r"[\\&]", new):
            return None
        # These signs are literal in a basic regular expression.
        pattern = re.compile(re.sub(r"[(){}+?|]", r"\\\g<0>", old))
        lines = text.split("\n")
        text = "\n".join(pattern.sub(new, line, not flags) for line in lines)
    return text


def _replayed(form: str, events: Iterable[_Event], entry: str, name: str) -> Session:
    files = _Files()
    steps: list[SessionStep] = []
    newest: dict[str, int] = {}  # path -> number of its newest step
    left_out: dict[str, str] = {}
    said = ""
    for event in events:
        if event.kind == "text":
            said = event.text.strip() or said
        elif event.kind == "output" and steps and steps[-1].claimed is None:
            steps[-1] = replace(steps[-1], claimed=claimed_speedup(event.text[:MAX_OUTPUT]))
        for path in files.changed(event):
            text = files.texts[path] or ""
            source = newest.get(event.old, 0) if event.kind in ("copy", "substitute") else 0
            if source and (known := steps[source - 1]).source == text:
                # The same candidate at another path, where it may replace an earlier one.
                earlier = known.parent or min(newest.get(path, 0), source - 1)
                steps[source - 1] = replace(known, parent=earlier)
                newest[path] = source
                continue
            found = candidate_entry(path, text, entry)
            if not found:
                left_out.setdefault(path, f"{path}: no entry of a candidate")
                continue
            left_out.pop(path, None)
            origin = {"form": form, "session": name, "file": path}
            steps.append(
                SessionStep(
                    parent=source or newest.get(path, 0),
                    name=PurePosixPath(path).name,
                    source=text,
                    entry=found,
                    plan=said[:MAX_PLAN],
                    provenance={key: value for key, value in origin.items() if value},
                )
            )
            newest[path] = len(steps)
        for path in files.unknown():
            left_out.setdefault(path, f"{path}: an edit of text that the session does not show")
        if len(steps) > MAX_STEPS:
            break  # it is refused, and the texts of the versions may be large
    return Session(form, tuple(steps), tuple(left_out.values()))


def candidate_entry(path: str, text: str, entry: str = "") -> str:
    """The class or function of a candidate that a file has, or ""."""
    suffix = PurePosixPath(path).suffix
    if suffix == ".py":
        names = (entry,) if entry else PYTHON_ENTRIES
        form = r"^(?:class|def)\s+{}\b"
    elif suffix in SUFFIXES:
        names = (entry or C_ENTRY,)
        form = r"\b{}\s*\("
    else:
        return ""
    found = (n for n in names if re.search(form.format(re.escape(n)), text, re.MULTILINE))
    return next(found, "")


# -- folders


def _of_folder(place: Path, entry: str) -> Session:
    # A link may lead out of the folder.
    files = [path for path in place.rglob("*.*") if path.is_file() and not path.is_symlink()]
    programs = [p for p in files if p.parent.name == "programs" and p.suffix == ".json"][:MAX_FILES]
    if programs:
        return _openevolve(_newest_checkpoint(programs), entry)
    rounds = sorted(
        (path for path in files if path.match("kernel_round_*.py")),
        key=lambda path: (str(path.parent), _number(path)),
    )
    if rounds:
        return _kernel_agent(place, rounds, entry)
    finals = sorted(
        (path for path in files if path.match("seed_*.py") or path.name == "final_kernel.py"),
        key=lambda path: (str(path.parent), path.name == "final_kernel.py", path.name),
    )
    if finals:
        return _kernel_agent(place, finals, entry)
    raise InvalidRequest(
        f"{place} has no known form",
        hint="An output folder of OpenEvolve has programs/*.json, one of KernelAgent"
        " kernel_round_*.py or final_kernel.py. Import a transcript as a file.",
    )


def _newest_checkpoint(programs: Sequence[Path]) -> list[Path]:
    """The programs of the newest checkpoint, which holds those of the earlier ones."""
    folders = {path.parent for path in programs}
    newest = max(folders, key=lambda folder: (_number(folder.parent), str(folder)))
    return sorted(path for path in programs if path.parent == newest)


def _number(path: Path) -> int:
    digits = re.findall(r"\d+", path.stem)
    return int(digits[-1]) if digits else 0


def _openevolve(programs: Sequence[Path], entry: str) -> Session:
    """Programs of a checkpoint in the order in which they were found, with their parents."""
    rows = [row for path in programs if isinstance(row := _row(_file(path)), dict)]
    rows.sort(
        key=lambda r: (
            r.get("iteration_found") or 0,
            r.get("generation") or 0,
            r.get("timestamp") or 0,
        )
    )
    numbers: dict[str, int] = {}
    steps: list[SessionStep] = []
    left_out = []
    for row in rows:
        language = str(row.get("language") or "python").lower()
        suffix = {"python": ".py", "c": ".c", "cuda": ".cu"}.get(language, ".cpp")
        name, code = f"kernel{suffix}", str(row.get("code") or "")
        found = candidate_entry(name, code, entry)
        if not found:
            left_out.append(f"program {row.get('id')}: no entry of a candidate")
            continue
        metrics, metadata = _inner(row, "metrics"), _inner(row, "metadata")
        claim = next((metrics[n] for n in metrics if "speedup" in n.lower().replace("_", "")), None)
        plan = row.get("changes_description") or metadata.get("changes") or ""
        steps.append(
            SessionStep(
                parent=numbers.get(str(row.get("parent_id")), 0),
                name=name,
                source=code,
                entry=found,
                plan=str(plan)[:MAX_PLAN],
                claimed=float(claim) if isinstance(claim, int | float) and claim > 0 else None,
                provenance={"form": "openevolve", "program": str(row.get("id"))[:100]},
            )
        )
        numbers[str(row.get("id"))] = len(steps)
    return Session("openevolve", tuple(steps), tuple(left_out))


def _inner(row: Json, name: str) -> Json:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def _kernel_agent(place: Path, paths: Sequence[Path], entry: str) -> Session:
    """Rounds of a worker, each a change of the one before; seeds and the final kernel have no
    known parent."""
    steps: list[SessionStep] = []
    left_out = []
    last: dict[Path, int] = {}
    for path in paths[:MAX_FILES]:
        code, name = _file(path), str(path.relative_to(place))
        found = candidate_entry(path.name, code, entry)
        if not found:
            left_out.append(f"{name}: no entry of a candidate")
            continue
        reply = path.with_name(f"round{_number(path):03d}_opt_reply.txt")
        plan = _file(reply) if reply.is_file() and not reply.is_symlink() else ""
        rounds = path.name.startswith("kernel_round_")
        steps.append(
            SessionStep(
                parent=last.get(path.parent, 0) if rounds else 0,
                name="kernel.py",
                source=code,
                entry=found,
                plan=plan.partition("```")[0][:MAX_PLAN].strip(),
                provenance={"form": "kernelagent", "file": name},
            )
        )
        last[path.parent] = len(steps)
    return Session("kernelagent", tuple(steps), tuple(left_out))


def _of_history(repository: Repository, path: str, entry: str) -> Session:
    """The versions of one file, each a change of the one before; messages may state timings."""
    steps: list[SessionStep] = []
    left_out = []
    for commit in repository.commits([path], with_first=True):
        text = repository.text(commit.sha, path) or ""
        found = candidate_entry(path, text, entry)
        if not found:
            left_out.append(f"{path} in {commit.sha[:10]}: no entry of a candidate")
        elif not steps or steps[-1].source != text:
            steps.append(
                SessionStep(
                    parent=len(steps),
                    name=PurePosixPath(path).name,
                    source=text,
                    entry=found,
                    plan=commit.message.strip()[:MAX_PLAN],
                    claimed=claimed_speedup(commit.message),
                    provenance={
                        "form": "git",
                        "repository": repository.name,
                        "commit": commit.sha,
                        "file": path,
                    },
                )
            )
    return Session("git", tuple(steps), tuple(left_out))


# -- before anything is stored


def _clean(session: Session) -> Session:
    """The session without secrets. Raises InvalidRequest without candidates."""
    if not session.steps:
        shown = "; ".join(session.left_out[:5]) or "it writes no file"
        raise InvalidRequest(
            f"the session ({session.form}) has no candidate: {shown}",
            hint=f"A candidate is a file with {', '.join(PYTHON_ENTRIES)} or {C_ENTRY}; name"
            " another class or function with --entry.",
        )
    if len(session.steps) > MAX_STEPS:
        raise InvalidRequest(
            f"the session has more than {MAX_STEPS} candidates", hint="Import a part of it."
        )
    scanner = SecretScanner()
    steps = tuple(
        replace(
            step,
            source=_called(scanner.without(step.source), step),
            plan=scanner.without(step.plan),
            provenance={key: scanner.without(text) for key, text in step.provenance.items()},
        )
        for step in session.steps
    )
    left_out = tuple(scanner.without(text) for text in session.left_out)
    return replace(session, steps=steps, left_out=left_out, secrets=scanner.removed)


def _called(source: str, step: SessionStep) -> str:
    """The source with a `ModelNew` around a function."""
    if not step.name.endswith(".py") or step.entry == "ModelNew":
        return source
    if re.search(rf"^class\s+{re.escape(step.entry)}\b", source, re.MULTILINE):
        return source
    return (
        f"{source.rstrip()}\n\n\nimport torch as _torch\n\n\nclass ModelNew(_torch.nn.Module):\n"
        f"    def forward(self, *inputs):\n        return {step.entry}(*inputs)\n"
    )


class SecretScanner:
    """Removes secrets from texts with the detectors of detect-secrets for keys and passwords, and
    those of this installation. Detectors by entropy are left out: code is full of such words.

    Raises Unavailable where detect-secrets is not installed."""

    def __init__(self) -> None:
        try:
            from detect_secrets.core.plugins import util
            from detect_secrets.core.scan import scan_line
            from detect_secrets.settings import transient_settings
        except ImportError as error:
            raise Unavailable(
                "detect-secrets is not installed, so secrets of a session cannot be removed",
                hint="Install it: pip install 'kernlore[sessions]'.",
            ) from error
        kinds: Mapping[str, type] = util.get_mapping_from_secret_type_to_class()
        names = [kind.__name__ for kind in kinds.values()]
        detectors = [{"name": name} for name in names if "Entropy" not in name]
        self._settings: Callable[[], AbstractContextManager[Any]] = lambda: transient_settings(
            {"plugins_used": detectors}
        )
        self._scan: Callable[[str], Iterable[Any]] = scan_line
        self._known = Redaction()
        self.removed = 0

    def without(self, text: str) -> str:
        """The text with a mark in place of each secret."""
        kept = self._known.error(_PEM.sub(REMOVED, text))
        with self._settings():
            lines = [self._line(line) for line in kept.split("\n")]
        clean = "\n".join(lines)
        self.removed += clean.count(REMOVED) - text.count(REMOVED)
        return clean

    def _line(self, line: str) -> str:
        for secret in self._scan(line):
            value = secret.secret_value
            if value and len(value) >= 3:
                # With the rest of its word, which may be part of the secret.
                first, *others = line.split(value)
                pieces = [first, *(_WORD_REST.sub("", piece) for piece in others)]
                ends = (_WORD_REST.sub("", piece[::-1])[::-1] for piece in pieces[:-1])
                line = REMOVED.join([*ends, pieces[-1]])
        return line
