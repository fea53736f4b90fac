"""`kernlore backup`, `restore`, `catalog`, `reindex` and `config`: the data directory as a whole.

A backup is taken from the directory itself, also while a service runs on it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.command import AsJson, DataDir, command
from api.cli.output import Json, note, pairs, table
from api.cli.target import read_settings, send_logs_to_stderr
from kb.addresses import without_password
from kb.errors import Conflict, InvalidRequest, NotFound

if TYPE_CHECKING:
    from kb.backup import BackupContents


def _contents_text(answer: Json) -> str:
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


@command(text=_contents_text, failed=lambda answer: bool(answer["damaged"]))
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
) -> Json:
    """Copy the data directory into one file. A service may run on it.

    It exits with 1 if a stored file was missing or damaged; the backup then has everything else.
    """
    from kb.backup import verify_backup, write_backup

    if (output is None) == (verify is None):
        raise InvalidRequest(
            "give either --output or --verify",
            hint="`kernlore backup -o FILE.tar` writes a backup, `--verify FILE.tar` checks one.",
        )
    send_logs_to_stderr("warning")
    if verify is not None:
        head = {"file": str(verify), "file_bytes": verify.stat().st_size}
        return {**head, **_described(verify_backup(verify))}
    assert output is not None
    written = write_backup(read_settings(data_dir), output, _progress(as_json))
    return {
        "file": str(written.path),
        "file_bytes": written.bytes,
        "left_out": list(written.left_out),
        **_described(written.contents),
    }


@command(text=_contents_text)
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `kernlore backup` wrote.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> Json:
    """Make a new data directory from a backup. All of it is restored, or nothing."""
    from kb.backup import restore_backup

    send_logs_to_stderr("warning")
    restored = restore_backup(file, read_settings(data_dir), _progress(as_json))
    for name, value in restored.settings.items():
        then = f"{value!r}" if value else "not set"
        note(f"KERNLORE_{name.upper()} was {then} when the backup was taken, and differs here")
    return {
        "data_dir": str(restored.data_dir),
        **_described(restored.contents),
        "schema": restored.schema,
        "queued_again": restored.requeued,
        "settings_that_differ": dict(restored.settings),
    }


def _progress(quiet: bool) -> Any:
    return (lambda message: None) if quiet else note


def _described(contents: BackupContents) -> dict[str, Any]:
    """The contents of a backup as JSON."""
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


# -- the catalog

catalog = typer.Typer(help="The catalog: move it to PostgreSQL, or back.")


@command(
    catalog,
    text=lambda copied: (
        f"copied {copied['rows']:,} rows of {len(copied['tables'])} tables from {copied['from']}"
        f" to {copied['to']}; each table was counted in both"
    ),
)
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="What to copy: see TO.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="A data directory, an SQLite file, or a URL such as"
            " postgresql+psycopg://USER:PASSWORD@HOST/DATABASE. It must hold nothing yet.",
        ),
    ],
    as_json: AsJson = False,
) -> Json:
    """Copy every row of a catalog into an empty one. No service may run on either.

    Uploaded files are not in a catalog: keep the data directory's folder blobs, or copy it too.
    """
    from kb.catalog.engine import open_place
    from kb.catalog.moving import copy_catalog
    from kb.data_dir import private_files

    _check_places(source, target)
    with private_files():
        old = open_place(source)
        try:
            new = open_place(target)
            try:
                counts = copy_catalog(old, new, _progress(as_json))
            finally:
                new.close()
        finally:
            old.close()
    names = {"from": without_password(source), "to": without_password(target)}
    return {**names, "rows": sum(counts.values()), "tables": counts}


def _check_places(source: str, target: str) -> None:
    from kb.data_dir import running_service

    if source == target:
        raise InvalidRequest("FROM and TO are the same", hint="Give another place to copy to.")
    if "://" not in source and not Path(source).exists():
        raise NotFound(f"there is no catalog in {source}", hint="Give the data directory itself.")
    for place in (source, target):
        folder = Path(place) if Path(place).is_dir() else Path(place).parent
        if "://" not in place and (running := running_service(folder)):
            raise Conflict(
                f"a service runs on {folder} ({running})",
                hint="Stop it: what it writes meanwhile would not be in the copy.",
            )


@command(
    text=lambda report: (
        f"indexed the words of {report['passages']} passages"
        f" and {report['added']} vectors in {report['collections']} collections"
    )
)
def reindex(data_dir: DataDir = None) -> Json:
    """Rebuild the search indexes from the catalog. No service may run on the data directory."""
    from kb.data_dir import ServiceLock, private_files, running_service

    settings = read_settings(data_dir)
    running = running_service(settings.data_dir)
    if running:
        raise Conflict(
            f"a service runs on {settings.data_dir} ({running}) and owns its vector index",
            hint="Stop it and run `kernlore reindex`. A service also repairs the index when it"
            " starts.",
        )
    send_logs_to_stderr("warning")
    # Without an address: no service may start, and no command takes this process for one.
    with private_files(), ServiceLock(settings.data_dir, ""):
        from api.services import open_services
        from kb.index.chroma import ChromaIndex

        services = open_services(settings)
        try:
            passages = services.snapshots.rebuild().passages
            index = ChromaIndex(
                services.catalog,
                services.embedder.fingerprint,
                settings.data_dir / "chroma",
                settings.chroma_url,
            )
            rebuilt = vars(index.rebuild())
            index.close()
        finally:
            services.close()
    return {"passages": passages, **rebuilt}


# -- settings

config = typer.Typer(help="Settings in effect.")


def _settings_table(settings: Json) -> str:
    rows = [(name, row["value"], row["source"], row["help"]) for name, row in settings.items()]
    return table(("setting", "value", "source", "meaning"), rows)


@command(config, "show", text=_settings_table)
def show_settings(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of settings to show. Default: all of them.")
    ] = None,
    data_dir: DataDir = None,
) -> Json:
    """Show settings with their values, sources and meaning."""
    settings = read_settings(data_dir)
    environment = {name.upper() for name in os.environ}
    rows: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        if names and name not in names:
            continue
        variable, value = f"KERNLORE_{name.upper()}", getattr(settings, name)
        source = "default"
        if name == "data_dir" and data_dir is not None:
            source = "--data-dir"
        elif variable in environment:
            source = f"environment {variable}"
        if name in ("catalog", "chroma_url", "blob_url") and value is not None:
            value = without_password(value)
        shown = str(value) if isinstance(value, Path) else value
        rows[name] = {"value": shown, "source": source, "help": field.description or ""}
    return rows
