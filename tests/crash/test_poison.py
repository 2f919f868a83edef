"""A call that no worker survives: it ends as unknown, and the run goes on."""

from __future__ import annotations

import asyncio

from commitline.tests.crash.stage import Scene


async def test_a_call_that_kills_every_worker_is_given_up_and_stays_unknown(scene: Scene) -> None:
    run = await scene.start()
    ended = asyncio.ensure_future(run.result())

    async with asyncio.timeout(240):
        while not ended.done():
            with scene.worker("poison:app") as worker:
                process = worker.process
                assert process is not None
                while process.poll() is None and not ended.done():
                    await asyncio.wait({ended}, timeout=0.05)

    after = await scene.aftermath()
    row = after.row("poison")
    assert after.output == "done"
    assert after.told("poison").status == "unknown"
    assert row.state == "unknown"
    assert "NODE_TIMEOUT_001" in (row.parked_reason or "")
    assert row.tries >= 2
