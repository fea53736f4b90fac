"""`kernlore backup` and `kernlore restore`: a data directory as one file, and back.

Both work on the directory itself, beside a running service or without one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.backends import read_settings, send_logs_to_stderr
from api.cli.options import AsJson, DataDir
from api.cli.output import Json, note, pairs, show
from kb.errors import InvalidRequest

if TYPE_CHECKING:
    from kb.backup import BackupContents

FAILED = 1


def backup(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write; one that ends in .gz is compressed. In a folder, the file is"
            " named by the time.",
        ),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead, read a backup and compare all its checksums."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Copy the data directory into one file. A service may run on it.

    It exits with 1 if a stored file was missing or damaged; the backup then has everything else.
    """
    from kb.backup import verify_backup as verify_backup
    from kb.backup import write_backup

    if (output is None) == (verify is None):
        raise InvalidRequest(
            "give either --output or --verify",
            hint="`kernlore backup -o FILE.tar` writes a backup, `--verify FILE.tar` checks one.",
        )
    send_logs_to_stderr("warning")
    answer: dict[str, Any]
    if output is not None:
        written = write_backup(read_settings(data_dir), output, _progress(as_json))
        contents = written.contents
        answer = {"file": str(written.path), "file_bytes": written.bytes}
        answer["left_out"] = list(written.left_out)
    else:
        assert verify is not None
        contents = verify_backup(verify)
        answer = {"file": str(verify), "file_bytes": verify.stat().st_size}
    show(answer | _described(contents), as_json, _text)
    return FAILED if contents.damaged else 0


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `kernlore backup` wrote.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a new data directory from a backup. All of it is restored, or nothing."""
    from kb.restore import restore_backup

    send_logs_to_stderr("warning")
    restored = restore_backup(file, read_settings(data_dir), _progress(as_json))
    answer = {"data_dir": str(restored.data_dir), **_described(restored.contents)}
    answer |= {"schema": restored.schema, "queued_again": restored.requeued}
    answer["settings_that_differ"] = dict(restored.settings)
    show(answer, as_json, _text)
    for name, value in restored.settings.items():
        then = f"{value!r}" if value else "not set"
        note(f"KERNLORE_{name.upper()} was {then} when the backup was taken; it is not so here")


def _progress(quiet: bool) -> Any:
    return (lambda message: None) if quiet else note


def _described(contents: BackupContents) -> dict[str, Any]:
    """What a backup holds, as JSON."""
    manifest = contents.manifest
    return {
        "taken_at": manifest.taken_at,
        "kernlore": manifest.kernlore,
        "schema": manifest.schema,
        "revision": manifest.revision,
        "counts": dict(manifest.counts),
        "jobs": dict(manifest.jobs),
        "vectors": dict(manifest.vectors),
        "settings": dict(manifest.settings),
        "files": contents.files,
        "bytes": contents.bytes,
        "damaged": list(contents.damaged),
    }


def _text(answer: Json) -> str:
    counted = ", ".join(f"{count:,} {name}" for name, count in answer["counts"].items() if count)
    jobs = ", ".join(f"{count:,} {state}" for state, count in sorted(answer["jobs"].items()))
    shown = {
        "data directory": answer.get("data_dir"),
        "file": answer.get("file"),
        "size": f"{answer['file_bytes']:,} bytes" if "file_bytes" in answer else None,
        "holds": f"{answer['files']:,} files of {answer['bytes']:,} bytes",
        "counts": counted,
        "jobs": jobs,
        "queued again": answer.get("queued_again"),
        "taken": f"{answer['taken_at']} by Kernlore {answer['kernlore']}",
        "schema": answer["schema"],
        "settings": answer["settings"],
        "left out": answer.get("left_out"),
        "damaged": answer["damaged"],
    }
    return pairs({name: value for name, value in shown.items() if value})
