"""One service under several concurrent clients (`benchmarks/knowledge/mixed_load.py` does it for
longer and with more), and another, with keys, under random sequences of calls from openapi.json.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis.checks import CHECKS as CHECKS_BY_NAME
from schemathesis.checks import load_all_checks

from benchmarks.knowledge.mixed_load import Plan, run
from benchmarks.service import Service, service_at
from tests.api.conftest import small_knowledge
from tests.api.keyed_service import SECRET_WORDS, KeyedService
from tests.api.test_operations import planted_ids
from tests.shared import place_models

pytestmark = pytest.mark.slow(seconds=20)

# Operations that start searches, evaluations and models in separate processes.
RUNS_CODE = r"^/(runs|evaluations|hardware/{hardware_id}/(acceptance|prepare|readings))$"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Path:
    return place_models(tmp_path_factory.mktemp("busy") / "data", model_cache)


@pytest.fixture(scope="module")
def service(data_dir: Path) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNLORE_KNOWLEDGE_DIR", str(small_knowledge(data_dir.parent / "knowledge")))
        with service_at(None, data_dir) as running:
            yield running


def test_concurrent_clients_see_no_errors_or_deleted_data(service: Service, data_dir: Path) -> None:
    plan = Plan(3, uploading=1, deleting=1, commands=1, seconds=2.0, manuals=5, seed=1)
    outcome = run(plan, data_dir)
    assert outcome.good, outcome
    assert all(outcome.answered[kind] for kind in ("retrieve", "upload", "delete"))
    assert sum(outcome.commands.values())


KEYS = ("reader", "writer", "curator", "admin", "admin", "revoked", "mi300x", "")
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_schema_conformance", "use_after_free")  # fmt: skip


def test_random_call_sequences_with_keys_keep_the_contract(keyed: KeyedService) -> None:
    """Ids from one answer are used by the next call; deleted ones too, and those of records that
    the key of another chip may not see. Each call has one of the keys, by its content."""
    schema = schemathesis.openapi.from_dict(keyed.ask("admin", "GET", "/openapi.json").json())
    schema.config.update(base_url=keyed.url)
    machine: Any = schema.exclude(path_regex=RUNS_CODE).as_state_machine()
    load_all_checks()
    checks = [CHECKS_BY_NAME.get_one(name) for name in CHECKS]
    planted = planted_ids(keyed.planted)
    hidden = {SECRET_WORDS, "Zanzibar", *vars(keyed.planted).values()} - {keyed.planted.elsewhere}

    calls: list[str] = []
    failures: list[str] = []

    class Sequences(machine):  # type: ignore[misc]
        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            drawn = zlib.crc32(repr((case.path_parameters, case.query, case.body)).encode())
            if drawn % 2:
                known = {n: planted[n] for n in case.path_parameters if n in planted}
                case.path_parameters.update(known)
            self.key = KEYS[drawn // 2 % len(KEYS)]
            secret = keyed.secrets.get(self.key, "")
            return {"headers": {"authorization": f"Bearer {secret}"} if secret else {}}

        def validate_response(self, response: Any, case: Any, **named: Any) -> None:
            calls.append(case.operation.label)
            try:
                self.check(response, case)
            except BaseException as error:
                failures.append(f"{self.key}: {case.as_curl_command()[:500]}: {error}")
                raise

        def check(self, response: Any, case: Any) -> None:
            case.validate_response(response, checks=checks)
            public = case.path == "/healthz"
            assert public or (response.status_code == 401) == (self.key in ("", "revoked"))
            if response.status_code >= 400:
                assert sorted(response.json()) == ["code", "details", "hint", "message"]
            elif self.key == "mi300x":
                sent = case.as_curl_command()
                assert not [s for s in hidden if s in response.text and s not in sent]

    # The service keeps what earlier sequences did, so that one cannot be replayed.
    with suppress(FlakyStrategyDefinition):
        Sequences.run(
            settings=settings(
                max_examples=4,
                stateful_step_count=20,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
        )
    assert failures == []
    assert len(calls) >= 10 and len(set(calls)) >= 5
