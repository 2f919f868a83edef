"""Take `run-timeline.png` and `run-details.png` again: play the quickstart, photograph the UI.

Needs the extra ``dev-server`` and Chromium (``apt-get install chromium``):

    python docs/images/take.py

Take them once more if the worker was killed before `lookup_order` had completed.
"""

import asyncio
import os
import subprocess
import tempfile
import time
from pathlib import Path

from commitline import AgentClient
from commitline.devstack import DevStack
from commitline.ledger import migrate
from commitline.testing.processes import ProviderProcess, WorkerProcess

APP = "commitline.examples.shop.app:app"
PAGES = {"timeline": "run-timeline.png", "user-metadata": "run-details.png"}
SECONDS_BETWEEN_WORKERS = 5


async def play(ui_url: str, environment: dict[str, str], folder: Path) -> None:
    """Kill a worker after the charge, let another one finish, and photograph the run."""
    crash, log = "after_effect@charge_card", folder / "workers.log"
    async with await AgentClient.connect() as client:
        with WorkerProcess(APP, environment=environment, crash_at=crash, log=log) as first:
            await asyncio.to_thread(wait_for, "worker.started", log)
            run = await client.start(
                "support", "Please charge order 4821 and mail me the receipt.", id="support-4821"
            )
            await asyncio.to_thread(first.wait_until_killed)
        await asyncio.sleep(SECONDS_BETWEEN_WORKERS)
        with WorkerProcess(APP, environment=environment, log=log):
            await run.result()
            execution = await client.temporal.get_workflow_handle(run.id).describe()
            place = f"{ui_url}/namespaces/default/workflows/{run.id}/{execution.run_id}"
            for page, picture in PAGES.items():  # the details are a query, which needs the worker
                await asyncio.to_thread(photograph, f"{place}/{page}", picture, folder)


def wait_for(event: str, log: Path) -> None:
    """Wait until the workers' log has an event."""
    while event not in log.read_text(encoding="utf-8"):
        time.sleep(0.1)


def photograph(url: str, picture: str, folder: Path) -> None:
    """Let Chromium draw a page, and save it beside this file."""
    target = Path(__file__).with_name(picture)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--window-size=1400,960", "--virtual-time-budget=15000"]
    command += [f"--user-data-dir={folder / 'chromium'}", f"--screenshot={target}", url]
    subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    """Start the servers in a temporary folder, and play."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with DevStack(folder / "data", persistent=False) as stack, ProviderProcess() as provider:
            asyncio.run(migrate(stack.database_url))
            environment = {
                "TEMPORAL_ADDRESS": stack.temporal_address,
                "COMMITLINE_DATABASE_URL": stack.database_url,
                "COMMITLINE_HEARTBEAT_SECONDS": "2",
                "SHOP_PROVIDER_URL": provider.url,
            }
            os.environ.update(environment)
            asyncio.run(play(stack.ui_url, environment, folder))


if __name__ == "__main__":
    main()
