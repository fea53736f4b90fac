"""Toolchains of a hardware.toml: a built-in one by name, or command templates.

Command templates of a toolchain are split into words as a POSIX shell would and run without a
shell, so pipes and `&&` do nothing. Placeholders: compile {source} {output}, run {output} or
{source}, and {input}, profile the same and {report}; anywhere {workdir} {arch} {hardware} {entry}.
`{{` and `}}` are literal braces. {input} is the JSON manifest that names the .npy files to read and
to write, {report} the file the profiler writes, {arch} the fact compute_capability. `env` values
may hold {workdir}, {arch} and {hardware}.
"""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from kb.hardware.checks import TableReader, names_of
from kb.hardware.spec import TIMINGS, Timing, ToolchainSpec

MAX_COMMAND = 2000

_ANYWHERE = frozenset({"workdir", "arch", "hardware", "entry"})
PLACEHOLDERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "compile": _ANYWHERE | {"source", "output"},
        "run": _ANYWHERE | {"source", "output", "input"},
        "profile": _ANYWHERE | {"source", "output", "input", "report"},
        "env": frozenset({"workdir", "arch", "hardware"}),
    }
)
_NEEDED = {"compile": ("source", "output"), "run": ("input",), "profile": ("input", "report")}

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def read_toolchains(root: TableReader, languages: tuple[str, ...]) -> Mapping[str, ToolchainSpec]:
    """The `toolchains` table of a file, checked; problems go to the reader."""
    table = root.table("toolchains")
    toolchains = {}
    for language in table.raw:
        if languages and language not in languages:
            table.add(language, "language not in `languages`", f'add "{language}" to languages')
        toolchains[str(language)] = _toolchain(table.table(language))
    return MappingProxyType(toolchains)


def _toolchain(reader: TableReader) -> ToolchainSpec:
    reader.only(names_of(ToolchainSpec))
    builtin = reader.text("builtin", limit=64)
    commands = {step: _command(reader, step) for step in _NEEDED}
    if builtin and any(commands.values()):
        reader.add("builtin", "beside command templates", "keep either builtin or the templates")
    if not builtin and not commands["run"]:
        reader.add("run", "missing", "give builtin = ..., or at least a run template")
    suffix = reader.text("suffix", limit=16)
    if suffix and not re.fullmatch(r"\.[A-Za-z0-9_.]+", suffix):
        reader.add("suffix", f"{suffix!r} is no file suffix", "like .cu")
    timing = cast(Timing, reader.choice("timing", TIMINGS, "wall"))
    return ToolchainSpec(
        builtin=builtin, timing=timing, suffix=suffix, env=_environment(reader), **commands
    )


def _command(reader: TableReader, step: str) -> str:
    command = reader.text(step, limit=MAX_COMMAND)
    if not command:
        return ""
    used = _placeholders(reader, step, command, PLACEHOLDERS[step])
    for needed in _NEEDED[step]:
        if used is not None and needed not in used:
            reader.add(step, f"does not use {{{needed}}}", f"put {{{needed}}} where it belongs")
    if used is not None and step != "compile" and not used & {"source", "output"}:
        reader.add(step, "runs nothing of the candidate", "use {output}, or {source} if uncompiled")
    try:
        words = shlex.split(command)
    except ValueError as error:
        reader.add(step, f"cannot be split into words: {error}", "close the quotes")
        return command
    if "\n" in command or {"|", "&&", "||", ";", ">", "<", "&"} & set(words):
        fix = "call one program; put several steps into a script of yours"
        reader.add(step, "runs without a shell: no pipes, redirections or second lines", fix)
    return command


def _environment(reader: TableReader) -> Mapping[str, str]:
    table = reader.table("env")
    env = {}
    for name in table.raw:
        value = table.text(name, limit=MAX_COMMAND)
        if not _ENV_NAME.fullmatch(name):
            table.add(name, "no name of an environment variable", "letters, digits and _")
        _placeholders(table, name, value, PLACEHOLDERS["env"])
        env[name] = value
    return MappingProxyType(env)


def _placeholders(
    reader: TableReader, key: str, template: str, allowed: frozenset[str]
) -> set[str] | None:
    """The placeholders a template uses; None when it is broken, which is then on record."""
    listed = " ".join(f"{{{name}}}" for name in sorted(allowed))
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        reader.add(key, f"broken placeholder: {error}", "write {{ and }} for literal braces")
        return None
    used = {name for _, name, _, _ in parts if name is not None}
    plain = all(not spec and conversion is None for _, _, spec, conversion in parts)
    if unknown := sorted(used - allowed):
        reader.add(key, f"unknown placeholder {{{unknown[0]}}}", f"allowed here: {listed}")
        return None
    if not plain:
        reader.add(key, "a placeholder with a format", "write the bare name, as in {source}")
    return used
