"""The servers of `commitline dev`: what to know of them, and where their UI shows a run."""

from __future__ import annotations

from urllib.parse import quote

from temporalio.client import WorkflowExecution

from ..client import AgentClient
from ..config import DevAddresses
from .console import OUT


def print_addresses(dev: DevAddresses) -> None:
    """Print what to know of `commitline dev`, and what to type next; addresses stay whole."""
    lines = [
        "The servers are up.\n",
        f"  Temporal  {dev.temporal_address}",
        f"  UI        {dev.ui_url}",
        f"  Postgres  {dev.database_url}",
        "\nNext, each in a terminal of its own, in this folder or below:",
        "\n  A provider that counts, for the example shop:",
        "  [bold]python -m commitline.testing.provider --port 8900[/]",
        "\n  A worker with the shop's agent; kill it in the middle if you like:",
        "  [bold]commitline worker commitline.examples.shop.app:app[/]",
        "\n  A run, and what it did:",
        "  [bold]commitline run support --id support-4821 \\\\[/]",
        '  [bold]  "Please charge order 4821 and mail me the receipt."[/]',
        "  [bold]commitline actions list[/]",
        "\nCtrl-C stops the servers; the data stays in .commitline.",
    ]
    OUT.print("\n".join(lines), soft_wrap=True)


def ui_link(client: AgentClient, run: WorkflowExecution) -> str | None:
    """Return where the UI of `commitline dev` shows the run, if it runs on that server."""
    dev = DevAddresses.find()
    address = client.temporal.service_client.config.target_host
    if dev is None or not dev.ui_url or dev.temporal_address != address:
        return None
    namespace = quote(client.temporal.namespace, safe="")
    return f"{dev.ui_url}/namespaces/{namespace}/workflows/{quote(run.id, safe='')}/{run.run_id}"
