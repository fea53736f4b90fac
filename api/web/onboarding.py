"""From the id of a chip to its first kernel: its steps, its description, the check of its tools."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse

from api.http.dependencies import Access, Parts
from api.http.routes.evaluations import from_this_machine
from api.services import CHECK_COMMAND, Services
from api.web.pages import SentForm, error_page, page, page_router, see_other
from ingestion import hardware as chips
from ingestion.progress import JobFilter, list_jobs
from kb.errors import InvalidRequest, KernloreError
from kb.hardware.schema import checked_toml, dump_hardware, hardware_template
from kb.scope import CATEGORIES, AccessScope
from optimizer.evaluation.queue import check_in_child
from retrieval.onboarding import onboarding_steps

ORIGIN = "the form"
router = page_router("/ui/hardware")


@router.get("/{hardware_id}/setup")
def setup(hardware_id: str, request: Request, parts: Parts, access: Access) -> HTMLResponse:
    """The steps of a chip, and what each needs."""
    return page(request, "setup.html", **_shown(parts, hardware_id, access, request))


def _shown(
    parts: Services, hardware_id: str, access: AccessScope, request: Request
) -> dict[str, Any]:
    chip = chips.show_hardware(parts.registry, hardware_id)
    spec = parts.registry.get(chip["id"])
    jobs = list_jobs(parts, JobFilter(hardware=chip["id"]), limit=20, access_scope=access)
    return {
        "chip": chip,
        "steps": onboarding_steps(parts, chip["id"], access),
        "jobs": jobs.jobs,
        "chips": chips.list_hardware(parts.registry),
        "categories": CATEGORIES,
        "settings": request.app.state.settings,
        "description": dump_hardware(spec),
        "template": hardware_template(chip["id"]),
        "checked": None,
        "error": None,
    }


@router.post("/{hardware_id}/description")
def describe(
    hardware_id: str, request: Request, parts: Parts, access: Access, form: SentForm
) -> Response:
    """Replace the description by the text of a hardware.toml; what is wrong with it is shown beside
    the text.
    """
    text = next(iter(form.values("description")), "").replace("\r\n", "\n")
    shown = _shown(parts, hardware_id, access, request)
    try:
        described = _read(text, shown["chip"]["id"])
        parts.register_hardware(described, ORIGIN)
    except KernloreError as error:
        if error.status >= 500:
            return error_page(request, error)
        return page(
            request, "setup.html", error.status, **shown | {"error": error, "description": text}
        )
    return see_other(request, f"/hardware/{shown['chip']['id']}/setup#toolchain")


def _read(text: str, hardware_id: str) -> dict[str, Any]:
    described = checked_toml(text, ORIGIN)
    if described["id"] != hardware_id:
        raise InvalidRequest(
            f"the text describes {described['id']!r}, and this page is about {hardware_id!r}",
            hint=f'Write id = "{hardware_id}", or add the other chip first.',
        )
    return described


@router.post("/{hardware_id}/check", dependencies=[Depends(from_this_machine)])
def check(hardware_id: str, request: Request, parts: Parts, access: Access) -> HTMLResponse:
    """Compile and run the sample kernel with the chip's own tools, and say what is missing."""
    shown = _shown(parts, hardware_id, access, request)
    checked = check_in_child(parts.settings, CHECK_COMMAND, shown["chip"]["id"])
    return page(request, "setup.html", **shown | {"checked": checked})
