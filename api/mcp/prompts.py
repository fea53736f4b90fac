"""Prompts: instructions for an optimization, and for onboarding a chip."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from pydantic import Field


def add_prompts(server: MCPServer) -> None:
    """Put the prompts into a server."""

    @server.prompt("optimize-kernel", title="Optimize a kernel")
    def optimize_kernel(
        problem: Annotated[str, Field(description="A built-in problem, or the path of a file.")],
        hardware: Annotated[str, Field(description="Id of the chip; auto: this machine's.")] = "",
        language: Annotated[str, Field(description="Language of the kernels; empty: any.")] = "",
    ) -> str:
        """Drive a whole optimization: briefing, kernel, verdict, and again."""
        by_path = "/" in problem or problem.endswith(".py")
        return _filled(
            "optimize-kernel.md",
            problem=problem,
            problem_argument=f"`problem_source`: the text of {problem}"
            if by_path
            else f'problem "{problem}"',
            hardware=hardware or "auto",
            language=f" in {language}" if language else "",
            language_argument=f', language "{language}"' if language else "",
        )

    @server.prompt("onboard-accelerator", title="Onboard an accelerator")
    def onboard_accelerator(
        hardware: Annotated[str, Field(description="Id of the chip: lower case, digits, hyphens.")],
    ) -> str:
        """Bring a chip from its manuals to a first optimized kernel."""
        return _filled("onboard-accelerator.md", hardware=hardware)


def _filled(name: str, **values: str) -> str:
    text = (files("api.mcp") / "texts" / name).read_text(encoding="utf-8")
    for place, value in values.items():
        text = text.replace(f"{{{{{place}}}}}", value)
    return text
