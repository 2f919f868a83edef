"""A worker has every activity that workflow code schedules, and no other of that kind."""

from __future__ import annotations

import importlib
import pkgutil

from temporalio import activity

from commitline import ActionLedger, App
from commitline.activities import contract
from commitline.activities.contract.approvals import FOREIGN_WORD_GIVEN
from commitline.activities.contract.spec import RESERVED_PREFIX
from commitline.ledger import ledger_pool
from commitline.worker import app_worker

from .bench import Bench


def scheduled() -> set[str]:
    """Return the activity types that the contract names."""
    modules = [
        importlib.import_module(f"{contract.__name__}.{found.name}")
        for found in pkgutil.iter_modules(contract.__path__)
    ]
    constants = (
        value for module in modules for name, value in vars(module).items() if name.isupper()
    )
    no_activities = {RESERVED_PREFIX, FOREIGN_WORD_GIVEN}
    return {
        value
        for value in constants
        if isinstance(value, str)
        and value.startswith(RESERVED_PREFIX)
        and value not in no_activities
    }


async def test_a_worker_registers_the_activities_that_the_contract_names(bench: Bench) -> None:
    async with (
        ledger_pool(bench.settings.database_url, size=1) as pool,
        app_worker(
            App(), client=bench.temporal, ledger=ActionLedger(pool), settings=bench.settings
        ) as worker,
    ):
        defined = [
            activity._Definition.from_callable(found)
            for found in worker.config().get("activities", [])
        ]

    registered = {one.name for one in defined if one is not None and one.name is not None}
    assert {name for name in registered if name.startswith(RESERVED_PREFIX)} == scheduled()
