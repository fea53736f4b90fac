"""A real PostgreSQL server for the tests, started once a process, with a database for each catalog.

Debian's packages `postgresql` or `postgresql-15` bring it; nothing has to run already. With
KERNLORE_TEST_CATALOG=postgresql every catalog that a test opens is on it (`make test-postgres`).
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.processes import kill_tree
from tests.one_server import OneServer, Unstartable

EVERYWHERE = os.environ.get("KERNLORE_TEST_CATALOG", "") == "postgresql"
ROLE = "kernlore"
TEMPLATE = "template_of_tests"  # migrated, empty
START_SECONDS = 30.0
_INITDB = ("-U", ROLE, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")


def _programs() -> Path:
    """The folder of initdb and postgres."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        # The real programs: what lies in PATH may be a link to them, or a script around them.
        real = (folder / "initdb").resolve().parent
        if (real / "postgres").exists():
            return real
    raise Unstartable("PostgreSQL is not installed (Debian: apt-get install postgresql)")


def _user() -> str | None:
    """PostgreSQL refuses to run as root; who else it may run as."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise Unstartable("there is no user but root that PostgreSQL could run as")


class Server:
    """A server on a socket in a folder of its own. With `durable` it syncs as one in use does."""

    def __init__(self, durable: bool = False) -> None:
        self._durable = durable
        self._programs, self._user = _programs(), _user()
        self.folder = Path(tempfile.mkdtemp(prefix="kl-pg-", dir=tempfile.gettempdir()))
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        self._databases: dict[Path, str] = {}
        try:
            subprocess.run(
                [self._programs / "initdb", "-D", self.folder / "data", *_INITDB],
                user=self._user,
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

    def url(self, database: str) -> str:
        """Of a database of this server."""
        return f"postgresql+psycopg://{ROLE}@/{database}?host={self.folder}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        # What is committed outlives `stop`; it need not outlive a crash of the machine.
        off = () if self._durable else ("fsync=off", "full_page_writes=off")
        settings = ("listen_addresses=", f"unix_socket_directories={self.folder}", *off)
        options = [part for setting in settings for part in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.folder / "data", *options],
                user=self._user,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt is for the tests, which stop it themselves
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                last = (self.folder / "log").read_text(errors="replace").splitlines()[-1:]
                self.stop()
                raise Unstartable(f"PostgreSQL does not start: {last}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(host=str(self.folder), user=ROLE, dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Stop it at once, as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=START_SECONDS)
            self._process = None

    def kill(self) -> None:
        """SIGKILL for it and all of its processes, as when its machine loses power."""
        if self._process is not None:
            kill_tree(self._process.pid)
            self._process.wait(timeout=START_SECONDS)
            self._process = None

    def remove(self) -> None:
        """Stop it and remove all that it has."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """One statement outside any of the catalogs; its rows."""
        import psycopg

        with psycopg.connect(
            host=str(self.folder), user=ROLE, dbname="postgres", autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create(self, name: str, template: str = TEMPLATE) -> str:
        """A new database, by default with an empty catalog; its URL."""
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url(name)

    def drop(self, name: str) -> None:
        """Remove a database, whoever is connected to it."""
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def of_directory(self, data_dir: Path) -> str:
        """The URL of the catalog of a data directory, which is made where there is none yet."""
        place = data_dir.absolute()
        if place not in self._databases:
            name = f"d{sha256(str(place).encode()).hexdigest()[:16]}"
            self._databases[place] = name
            if not self.execute(f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
                self.create(name)
        return self.url(self._databases[place])

    def copy_directory(self, source: Path, target: Path) -> None:
        """Give a directory the catalog of another, in place of its own if it has one. Whoever has
        that of the other open connects again."""
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
        # Words sort unlike their bytes here, as they do on most servers.
        running.execute(
            f"CREATE DATABASE {TEMPLATE} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
        )
        open_catalog(running.folder / "template", running.url(TEMPLATE)).close()
    except BaseException:
        running.remove()
        raise
    return running


_one = OneServer(_started)
server, server_or_skip, stop = _one.get, _one.get_or_skip, _one.stop


def environment_of(data_dir: Path) -> dict[str, str]:
    """What a process of its own needs, to have the same catalog for a data directory."""
    return {"KERNLORE_CATALOG": server().of_directory(data_dir)} if EVERYWHERE else {}


def use_everywhere() -> None:
    """Every catalog that this process or a child of it opens is on the server from now on."""
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
