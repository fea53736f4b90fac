"""One service under several concurrent clients (`benchmarks/knowledge/mixed_load.py` does it for
longer and with more), and under random sequences of calls from openapi.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import (
    not_a_server_error,
    response_schema_conformance,
    use_after_free,
)

from benchmarks.knowledge.mixed_load import Plan, run
from benchmarks.service import Service, service_at
from tests.api.conftest import small_knowledge
from tests.shared import place_models

pytestmark = pytest.mark.slow(seconds=20)

# Without operations that start searches and evaluations in separate processes.
DRAWN = r"^/(documents|passages|hardware|skills|jobs|retrieve|retrievals|signals|knowledge)"


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


def test_random_call_sequences_cause_no_server_error(service: Service) -> None:
    """Ids from one answer are used by the next call; deleted ones too."""
    schema = schemathesis.openapi.from_url(f"{service.http.url}/openapi.json")
    machine: Any = schema.include(path_regex=DRAWN).as_state_machine()
    checks = [not_a_server_error, response_schema_conformance, use_after_free]

    class Sequences(machine):  # type: ignore[misc]
        def validate_response(self, response: Any, case: Any, **named: Any) -> None:
            case.validate_response(response, checks=checks)

    Sequences.run(
        settings=settings(
            max_examples=8,
            stateful_step_count=6,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
    )
