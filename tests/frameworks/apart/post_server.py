"""An MCP server over stdio that mails, and kills the worker that started it where it is told."""

from __future__ import annotations

import os
import signal

from mcp.server.fastmcp import FastMCP

from commitline.tests.frameworks.apps import shop

post = FastMCP("post")


@post.tool()
def send_mail(to: str) -> str:
    """Send a mail."""
    sent = shop.post("/mails", {"to": to, "text": "hi"}, None)
    if os.environ.get("DIE_AFTER") == "send_mail":
        os.kill(os.getppid(), signal.SIGKILL)
    return sent


if __name__ == "__main__":
    post.run()
