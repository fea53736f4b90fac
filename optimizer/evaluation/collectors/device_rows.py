"""A measured device as a row of the catalog's `devices` table: what measurements point at.

One row for each device and driver; its ceilings are the last that were stored. Needs SQLAlchemy,
which a bare GPU machine has not: nothing else here imports it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kb import clock
from kb.catalog.engine import Catalog
from kb.catalog.tables.hardware import devices
from kb.ids import derived_id
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.collectors.probe import DeviceIdentity


def store_device(
    catalog: Catalog,
    hardware_id: str,
    identity: DeviceIdentity,
    ceilings: Ceilings | None = None,
) -> str:
    """The id of the device's row, made or brought up to date."""
    row_id = derived_id("dev", identity.uuid, identity.driver or "")
    values: dict[str, Any] = {
        "hardware_id": hardware_id,
        "name": identity.name,
        "memory_bytes": identity.memory_bytes,
        "environment": identity.as_json(),
        **(_measured(ceilings) if ceilings is not None else {}),
    }
    with catalog.write() as connection:
        found = connection.execute(sa.select(devices.c.id).where(devices.c.id == row_id)).first()
        if found is not None:
            connection.execute(sa.update(devices).where(devices.c.id == row_id).values(**values))
            return row_id
        fresh = {"id": row_id, "uuid": identity.uuid, "driver": identity.driver}
        connection.execute(
            sa.insert(devices).values(
                {"matmul_peak": {}, **values, **fresh, "created_at": clock.now()}
            )
        )
    return row_id


def _measured(ceilings: Ceilings) -> dict[str, Any]:
    moment = datetime.fromtimestamp(ceilings.measured_at, UTC)
    return {
        "copy_bandwidth": ceilings.copy_bandwidth,
        "matmul_peak": {dtype: figure.value for dtype, figure in ceilings.matmul.items()},
        "launch_latency": ceilings.launch.value if ceilings.launch else None,
        "measured_at": clock.stamp(moment),
    }
