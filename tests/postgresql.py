"""A real PostgreSQL server for the tests, started once per process, with a database per catalog.

Installed by Debian's packages `postgresql` or `postgresql-15`; no running server is needed. With
KERNLORE_TEST_CATALOG=postgresql every catalog that a test opens is on it (`make test-postgres`).
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.processes import kill_tree
from tests.one_server import LoopbackServer, OneServer, Unstartable

EVERYWHERE = os.environ.get("KERNLORE_TEST_CATALOG", "") == "postgresql"
ROLE = "kernlore"
TEMPLATE = "template_of_tests"  # migrated, empty
_INITDB = ("-U", ROLE, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")


def _programs() -> Path:
    """The folder of initdb and postgres."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        # The real programs: those in PATH may be links to them, or scripts around them.
        real = (folder / "initdb").resolve().parent
        if (real / "postgres").exists():
            return real
    raise Unstartable("PostgreSQL is not installed (Debian: apt-get install postgresql)")


def _user() -> str | None:
    """The user that runs the server, because PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise Unstartable("there is no user but root that PostgreSQL could run as")


class Server(LoopbackServer):
    """A server on a socket in its folder. With `durable` it syncs like a production server."""

    name, start_seconds = "PostgreSQL", 30.0

    def __init__(self, durable: bool = False) -> None:
        self._durable = durable
        self._programs, self.user = _programs(), _user()
        super().__init__("kl-pg-")
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        self._databases: dict[Path, str] = {}
        try:
            subprocess.run(
                [self._programs / "initdb", "-D", self.folder / "data", *_INITDB],
                user=self.user,
                cwd=self.folder,
                check=True,
                capture_output=True,
            )
            self.start()
        except (OSError, subprocess.CalledProcessError) as error:
            self.remove()
            output = getattr(error, "stderr", b"") or b""
            reason = output.decode(errors="replace").strip().splitlines()
            raise Unstartable(f"PostgreSQL cannot be started: {reason[-1:] or error}") from error

    def url_of(self, database: str) -> str:
        """The URL of a database of this server."""
        return f"postgresql+psycopg://{ROLE}@/{database}?host={self.folder}"

    def command(self) -> list[str | Path]:
        # Committed data survives `stop`, but not necessarily a crash of the machine.
        off = () if self._durable else ("fsync=off", "full_page_writes=off")
        settings = ("listen_addresses=", f"unix_socket_directories={self.folder}", *off)
        options = [part for setting in settings for part in ("-c", setting)]
        return [self._programs / "postgres", "-D", self.folder / "data", *options]

    def answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(host=str(self.folder), user=ROLE, dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Stop it at once, as in a crash."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=self.start_seconds)
            self._process = None

    def kill(self) -> None:
        """SIGKILL for all its processes, as in a power failure."""
        if self._process is not None:
            kill_tree(self._process.pid)
            self._process.wait(timeout=self.start_seconds)
            self._process = None

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute one statement outside the catalogs; its rows."""
        import psycopg

        with psycopg.connect(
            host=str(self.folder), user=ROLE, dbname="postgres", autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create(self, name: str, template: str = TEMPLATE) -> str:
        """A new database, by default with an empty catalog; its URL."""
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url_of(name)

    def drop(self, name: str) -> None:
        """Remove a database and its connections."""
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def of_directory(self, data_dir: Path) -> str:
        """The URL of the catalog of a data directory, created if missing."""
        place = data_dir.absolute()
        if place not in self._databases:
            name = f"d{sha256(str(place).encode()).hexdigest()[:16]}"
            self._databases[place] = name
            if not self.execute(f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
                self.create(name)
        return self.url_of(self._databases[place])

    def copy_directory(self, source: Path, target: Path) -> None:
        """Give a directory the catalog of another, replacing its own. Open connections to the other
        are closed.
        """
        self.of_directory(source)
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{self._databases[source.absolute()]}'"
        )
        name = f"d{sha256(str(target.absolute()).encode()).hexdigest()[:16]}"
        self.drop(name)
        self.create(name, self._databases[source.absolute()])
        self._databases[target.absolute()] = name

    def forget(self, folder: Path) -> None:
        """Remove the databases of the data directories in a folder."""
        for place in [place for place in self._databases if place.is_relative_to(folder)]:
            self.drop(self._databases.pop(place))


def _started() -> Server:
    from kb.catalog.engine import open_catalog

    running = Server()
    try:
        # Words sort unlike their bytes here, as on most servers.
        running.execute(
            f"CREATE DATABASE {TEMPLATE} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
        )
        open_catalog(running.folder / "template", running.url_of(TEMPLATE)).close()
    except BaseException:  # also an interrupt leaves no server behind
        running.remove()
        raise
    return running


_one = OneServer(_started)
server, server_or_skip, stop = _one.get, _one.get_or_skip, _one.stop


def environment_of(data_dir: Path) -> dict[str, str]:
    """The environment with which another process uses the same catalog for a data directory."""
    return {"KERNLORE_CATALOG": server().of_directory(data_dir)} if EVERYWHERE else {}


def use_everywhere() -> None:
    """Put every catalog that this process or a child opens on the server from now on."""
    from kb import workers
    from kb.catalog import engine

    chosen: Callable[..., Any] = engine._database
    given: Callable[..., Any] = workers.environment

    def database(data_dir: Path, url: str | None) -> Any:
        return chosen(data_dir, url or server().of_directory(data_dir))

    def environment(settings: Any) -> dict[str, str]:
        return {**given(settings), **environment_of(settings.data_dir)}

    engine._database = database
    workers.environment = environment
