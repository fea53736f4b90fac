"""Real HTTP on loopback, real litellm; without the `llm` extra these tests are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, LlmSynthesizer
from optimizer.search.synthesizers.llm.settings import LlmSettings, models_from
from tests.optimizer.search.synthesizers.llm.llm_servers import ModelServer, Script

KEY = "local-test-key-0123456789"


@pytest.fixture
def serve() -> Iterator[Callable[[Script], ModelServer]]:
    servers: list[ModelServer] = []

    def start(script: Script) -> ModelServer:
        servers.append(ModelServer(script))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def waits() -> list[float]:
    """The recorded sleeps of the synthesizer."""
    return []


@pytest.fixture
def synthesizer(tmp_path: Path, waits: list[float]) -> Callable[..., LlmSynthesizer]:
    pytest.importorskip("litellm", reason="the extra `llm` is not installed")

    def make(
        server: ModelServer, model: str = "openai/scripted", tools: Any = None, **changes: Any
    ) -> LlmSynthesizer:
        settings = LlmSettings(
            models_from(model),
            **{"api_base": server.url, "api_key": KEY, "timeout_s": 30.0, **changes},
            tools=tools is not None,
        )
        folder = FolderTranscripts(tmp_path / "transcripts")
        return LlmSynthesizer(settings, folder, tools=tools, sleep=waits.append)

    return make
