"""From the id of a chip to its first kernel: its steps, its description, the check of its tools."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from api.http.dependencies import Parts
from api.operations import documents, hardware
from api.operations.evaluations import evaluate_candidate
from api.services import CHECK_COMMAND, Services
from api.web.pages import SentForm, error_page, form_route, page, page_router, see_other
from kb.errors import InvalidRequest, KernloreError
from kb.hardware.schema import checked_toml, dump_hardware, hardware_template
from kb.scope import CATEGORIES
from optimizer.evaluation.queue import check_in_child
from retrieval.onboarding import onboarding_steps

ORIGIN = "the form"
router = page_router("/ui/hardware")


@router.get("/{hardware_id}/setup")
def setup(hardware_id: str, request: Request, services: Parts) -> HTMLResponse:
    """The steps of onboarding a chip, with their requirements."""
    return page(request, "setup.html", **_shown(services, hardware_id))


def _shown(services: Services, hardware_id: str) -> dict[str, Any]:
    chip = hardware.show_hardware(services, hardware_id)
    listed = documents.list_jobs(services, hardware=chip.id, limit=20)
    return {
        "chip": chip,
        "counts": listed.counts,
        "steps": onboarding_steps(services, chip.id),
        "jobs": listed.jobs,
        "chips": hardware.list_hardware(services).hardware,
        "categories": CATEGORIES,
        "settings": services.settings,
        "description": dump_hardware(services.registry.get(chip.id)),
        "template": hardware_template(chip.id),
        "checked": None,
        "error": None,
    }


@form_route(router, "/{hardware_id}/description", hardware.register_hardware)
def describe(hardware_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Replace the description by the text of a hardware.toml; an error is shown with the text."""
    text = next(iter(form.values("description")), "").replace("\r\n", "\n")
    shown = _shown(services, hardware_id)
    chip = shown["chip"].id
    try:
        services.register_hardware(_read(text, chip), ORIGIN)
    except KernloreError as error:
        if error.status >= 500:
            return error_page(request, error)
        return page(
            request, "setup.html", error.status, **shown | {"error": error, "description": text}
        )
    return see_other(request, f"/hardware/{chip}/setup#toolchain")


def _read(text: str, hardware_id: str) -> dict[str, Any]:
    described = checked_toml(text, ORIGIN)
    if described["id"] != hardware_id:
        raise InvalidRequest(
            f"the text describes {described['id']!r}, and this page is about {hardware_id!r}",
            hint=f'Write id = "{hardware_id}", or add the other chip first.',
        )
    return described


# It compiles and runs a kernel here, so it needs the role of an evaluation.
@form_route(router, "/{hardware_id}/check", evaluate_candidate)
def check(hardware_id: str, request: Request, services: Parts) -> HTMLResponse:
    """Compile and run the sample kernel with the chip's own tools, and name missing tools."""
    shown = _shown(services, hardware_id)
    checked = check_in_child(services.settings, CHECK_COMMAND, shown["chip"].id)
    return page(request, "setup.html", **shown | {"checked": checked})
