"""Keys and sessions in the catalog, and the audit log."""

from __future__ import annotations

import json

import pytest

from kb import clock
from kb.audit import MAX_SUBJECTS, AuditEntry, AuditLog
from kb.catalog import Catalog
from kb.catalog.keys import Keys
from kb.catalog.tables import api_keys, key_sessions
from kb.errors import InvalidRequest, NotFound


def test_key_is_valid_until_revoked_by_any_process(catalog: Catalog) -> None:
    here, there = Keys(catalog), Keys(catalog)
    assert not there.any() and there.find("") is None
    made = here.create("writer", name="  team  ", hardware=["h200", "h100", "h100"], days=1)
    assert made.key.id.startswith("key_") and made.key.name == "team"
    assert there.find(made.secret) == made.key and there.find(made.secret[:-1]) is None
    assert made.key.hardware == ("h100", "h200")
    session = there.open_session(made.key)
    assert here.find_session(session) == made.key and here.find_session(made.secret) is None
    assert here.find(session) is None  # a session is not a key
    assert here.revoke(made.key.id).state == "revoked"
    assert there.find(made.secret) is None and there.find_session(session) is None
    assert there.any()  # revoking the last key does not open the service
    revoked = here.list()[0].revoked_at
    assert here.revoke(made.key.id).revoked_at == revoked
    with pytest.raises(NotFound, match="key_unknown"):
        here.revoke("key_unknown")


def test_expired_keys_and_sessions_are_refused(catalog: Catalog) -> None:
    keys = Keys(catalog)
    made = keys.create("reader", days=1)
    session = keys.open_session(made.key)
    with catalog.write() as connection:
        connection.execute(key_sessions.update().values(expires_at=clock.after(-1)))
    assert keys.find_session(session) is None
    session = keys.open_session(made.key)
    with catalog.read() as connection:
        assert len(connection.execute(key_sessions.select()).all()) == 1  # the old row is deleted
    with catalog.write() as connection:
        connection.execute(api_keys.update().values(expires_at=clock.after(-1)))
    keys = Keys(catalog)
    assert keys.find(made.secret) is None and keys.find_session(session) is None
    assert [key.state for key in keys.list()] == ["expired"]


def test_secrets_differ_and_are_not_stored(catalog: Catalog) -> None:
    keys = Keys(catalog)
    secrets = [keys.create("reader").secret for _ in range(3)]
    assert len(set(secrets)) == 3 and all(len(secret) >= 47 for secret in secrets)
    with catalog.read() as connection:
        rows = str(connection.execute(api_keys.select()).all())
    assert not [secret for secret in secrets if secret in rows or secret[4:] in rows]


def test_last_use_is_written_in_batches(catalog: Catalog) -> None:
    keys = Keys(catalog)
    key = keys.create("reader").key
    keys.used(key)
    with catalog.read() as connection:
        assert connection.execute(api_keys.select()).one().last_used_at is None
    assert keys.list()[0].last_used_at is not None


@pytest.mark.parametrize(
    ("role", "hardware", "days"),
    [("owner", (), None), ("admin", ("h100",), None), ("reader", (), 0), ("reader", (), 1e9)],
)
def test_invalid_keys_are_refused(
    catalog: Catalog, role: str, hardware: tuple[str, ...], days: float | None
) -> None:
    keys = Keys(catalog)
    with pytest.raises(InvalidRequest):
        keys.create(role, hardware=hardware, days=days)
    assert not keys.any()


def test_audit_log_is_json_lines(catalog: Catalog) -> None:
    log = AuditLog(catalog.data_dir)
    assert log.read() == []
    log.append(AuditEntry("key_1", "DELETE /documents", "200", ("doc_1", "x" * 500)))
    with log.path.open("a") as file:
        file.write('{"who": "cut off by a full di\n')
    log.append(AuditEntry("key_2", "a\nb", "403", tuple(f"doc_{n}" for n in range(99))))
    newest, oldest = log.read()
    assert (newest["who"], newest["action"], len(newest["subjects"])) == (
        "key_2",
        "a\nb",
        MAX_SUBJECTS,
    )
    assert len(oldest["subjects"][1]) < 500 and log.read(subject="doc_1") == [newest, oldest]
    assert log.read(who="key_1") == [oldest] and log.read(1) == [newest]
    lines = log.path.read_text().splitlines()
    assert len(lines) == 3 and json.loads(lines[0])["at"].endswith("Z")
