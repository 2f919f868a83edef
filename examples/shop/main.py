"""The other half of an application: it starts a run and waits for the answer."""

import asyncio
import sys

from commitline import AgentClient


async def main(run_id: str) -> None:
    """Start the shop's agent, or join the run that has this id, and print what happened."""
    async with await AgentClient.connect() as client:
        run = await client.start(
            "support", "Please charge order 4821 and mail me the receipt.", id=run_id
        )
        result = await run.result()
        print(result.output)  # noqa: T201
        for action in await run.actions():
            print(f"  {action.position}  {action.tool}  {action.state}")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "support-4821"))
