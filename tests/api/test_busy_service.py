"""One service under several clients at once (`benchmarks/knowledge/mixed_load.py` does it for
longer and with more), and under sequences of calls that are drawn from its own description.
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

# Without what starts searches and evaluations, which are processes of their own.
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


def test_no_client_fails_or_sees_what_another_has_replaced_or_deleted(
    service: Service, data_dir: Path
) -> None:
    plan = Plan(3, uploading=1, deleting=1, commands=1, seconds=2.0, manuals=5, seed=1)
    outcome = run(plan, data_dir)
    assert outcome.good, outcome
    assert all(outcome.answered[kind] for kind in ("retrieve", "upload", "delete"))
    assert sum(outcome.commands.values())


def test_no_sequence_of_calls_makes_an_error_of_the_service(service: Service) -> None:
    """Ids that one call answers are used by the next; deleted ones too."""
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
