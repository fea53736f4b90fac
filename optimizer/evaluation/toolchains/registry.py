"""The toolchain that compiles a language for a hardware.

A hardware.toml names a built-in toolchain or has command templates. Languages that do not depend on
the chip (torch) are known here. Whether a toolchain works on this machine is decided by its
`available`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kb.errors import InvalidRequest, Unavailable
from optimizer.evaluation.toolchains.base import EvaluationTarget, Toolchain
from optimizer.evaluation.toolchains.cpp import CppToolchain
from optimizer.evaluation.toolchains.cuda import Nvcc
from optimizer.evaluation.toolchains.python import TorchPython, TritonAmd, TritonNvidia

BUILTIN: Mapping[str, Callable[[], Toolchain]] = {
    "g++": CppToolchain,
    "triton-nvidia": TritonNvidia,
    "triton-amd": TritonAmd,
    "nvcc": Nvcc,
    "torch": TorchPython,
}
# Languages that a hardware.toml need not mention.
EVERYWHERE: Mapping[str, str] = {"torch": "torch"}
# Names that hardware files may use and that are not implemented.
NOT_BUILT: Mapping[str, str] = {
    "hipcc": "hipcc is not driven by a built-in toolchain; write the kernel in Triton, or describe "
    "hipcc as command templates under [toolchains.hip]."
}


def toolchain_for(
    language: str, target: EvaluationTarget, builtin_name: str | None = None
) -> Toolchain:
    """The toolchain of `builtin_name`, else of the target's command templates, else the language's.

    Raises InvalidRequest if nothing compiles this language for this hardware, Unavailable if the
    toolchain is not supported.
    """
    name = builtin_name or str(target.templates.get("builtin") or "")
    if not name and target.templates:
        return _command(language, target)
    name = name or EVERYWHERE.get(language, "")
    chain = _builtin(name, language, target)
    if language not in chain.languages:
        raise InvalidRequest(
            f"toolchain {chain.name!r} does not compile {language!r}",
            hint=f"It compiles {', '.join(chain.languages)}; check [toolchains.{language}] of "
            f"{target.hardware}.",
        )
    return chain


def usable_toolchain(
    language: str, target: EvaluationTarget, builtin_name: str | None = None
) -> Toolchain:
    """As `toolchain_for`; also raises Unavailable if the toolchain cannot compile for the target
    here, with a hint on what to install."""
    chain = toolchain_for(language, target, builtin_name)
    answer = chain.available(target)
    if not answer.ok:
        raise Unavailable(
            f"{chain.name}: {answer.reason}",
            hint=answer.hint,
            details={"toolchain": chain.name, "installed": installed(target)},
        )
    return chain


def installed(target: EvaluationTarget) -> dict[str, str]:
    """Every built-in toolchain: its version, or why it cannot compile for the target."""
    states = {}
    for name, make in BUILTIN.items():
        chain = make()
        answer = chain.available(target)
        states[name] = chain.version() if answer.ok else f"unavailable: {answer.reason}"
    return states


def _builtin(name: str, language: str, target: EvaluationTarget) -> Toolchain:
    if not name:
        known = " and ".join(f"{name} ({suffix})" for name, suffix in target.languages.items())
        raise InvalidRequest(
            f"{target.hardware} has no toolchain for {language!r}",
            hint=(f"It has {known}: write the kernel in one of them, or add" if known else "Add")
            + f" [toolchains.{language}] with a builtin ({', '.join(BUILTIN)}) or command templates"
            " to its hardware.toml.",
            details={"language": language, "hardware": target.hardware},
        )
    if name in NOT_BUILT:
        raise Unavailable(f"{name} is not supported", hint=NOT_BUILT[name])
    make = BUILTIN.get(name)
    if make is None:
        raise InvalidRequest(
            f"unknown built-in toolchain {name!r}", hint=f"Known: {', '.join(BUILTIN)}."
        )
    return make()


def _command(language: str, target: EvaluationTarget) -> Toolchain:
    # Imported here: most runs never need it.
    from kb.hardware.spec import ToolchainSpec
    from optimizer.evaluation.toolchains.command import CommandToolchain

    return CommandToolchain(language, ToolchainSpec(**target.templates))
