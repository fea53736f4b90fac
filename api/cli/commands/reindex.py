"""`kernlore reindex`: both search indexes rebuilt from the catalog. Nothing is embedded again."""

from __future__ import annotations

from api.cli.backends import read_settings, send_logs_to_stderr
from api.cli.options import AsJson, DataDir
from api.cli.output import Json, show
from kb.errors import Conflict


def reindex(data_dir: DataDir = None, as_json: AsJson = False) -> None:
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
    # Held without an address: no service may start, and no command takes this for one.
    with private_files(), ServiceLock(settings.data_dir, ""):
        from api.services import open_services
        from kb.catalog.knowledge.versions import rebuild_lexical
        from kb.index.chroma import ChromaIndex

        services = open_services(settings)
        try:
            with services.catalog.write() as connection:
                passages = rebuild_lexical(connection)
            index = ChromaIndex(
                services.catalog,
                services.embedder.fingerprint,
                settings.data_dir / "chroma",
                settings.chroma_url,
            )
            report = {"passages": passages, **vars(index.rebuild())}
            index.close()
        finally:
            services.close()
    show(report, as_json, _text)


def _text(report: Json) -> str:
    return (
        f"indexed the words of {report['passages']} passages"
        f" and {report['added']} vectors in {report['collections']} collections"
    )
