"""Agents as tools: what is refused where they are defined, and what a call must look like."""

from __future__ import annotations

import pytest

from commitline import Agent, App, Effect, ScriptedModel, tool
from commitline.activities.app.agent import AgentTool
from commitline.activities.app.tool import Tool
from commitline.activities.contract.deadlines import RunLimits
from commitline.activities.contract.sub_agents import prompt_in
from commitline.errors import DefinitionError, InvalidArguments

MODEL = ScriptedModel("scripted", [])


@tool(effect=Effect.READ)
async def look() -> str:
    return "seen"


def agent(name: str, *tools: Tool | AgentTool) -> Agent:
    return Agent(name, MODEL, "", tools=list(tools))


def test_an_app_serves_the_agents_that_are_tools_and_their_tools_without_listing_them() -> None:
    lowest = agent("lowest", look)
    middle = agent("middle", lowest.as_tool(description="Looks."))
    top = agent("top", middle.as_tool(description="Asks."), lowest.as_tool(description="Looks."))

    app = App([top])

    assert [one.name for one in app.served] == ["top", "middle", "lowest"]
    assert app.agent("lowest") is lowest
    assert list(app.tools) == [look]


def test_the_other_model_is_told_of_one_parameter_the_prompt() -> None:
    made = Agent("clerk", MODEL, "", output_type=int).as_tool(
        name="ask_clerk", description="Knows.", summary="Ask about {prompt}"
    )

    (spec,) = agent("top", made).spec(heartbeat_seconds=1, limits=RunLimits()).tools

    assert (spec.definition.name, spec.definition.description) == ("ask_clerk", "Knows.")
    assert list(spec.definition.parameters["properties"]) == ["prompt"]
    assert (spec.agent, spec.structured, spec.summary) == ("clerk", True, "Ask about {prompt}")


def test_two_different_agents_of_one_name_are_refused() -> None:
    one, other = agent("clerk"), agent("clerk", look)
    below = agent("top", one.as_tool(description="A"), other.as_tool(name="b", description="B"))

    with pytest.raises(DefinitionError, match="two agents are named 'clerk'"):
        App([below])


def test_agents_that_call_each_other_in_a_circle_are_refused() -> None:
    tools: list[Tool | AgentTool] = []
    first = Agent("first", MODEL, "", tools=tools)
    tools.append(agent("second", first.as_tool(description="Asks.")).as_tool(description="Asks."))

    with pytest.raises(DefinitionError, match="circle: first -> second -> first"):
        App([first])


@pytest.mark.parametrize(
    ("name", "described", "reason"),
    [("two words", "Asks.", "needs a name as a tool"), ("clerk", " ", "needs a description")],
)
def test_one_that_no_model_could_call_is_refused(name: str, described: str, reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        agent(name).as_tool(description=described)


def test_two_tools_of_one_name_are_refused_whatever_they_are() -> None:
    with pytest.raises(DefinitionError, match="two tools named 'look'"):
        agent("top", look, agent("clerk").as_tool(name="look", description="Looks."))


def test_a_call_has_a_prompt_and_nothing_else() -> None:
    assert prompt_in("clerk", '{"prompt": "Look."}') == "Look."
    for wrong in ("{}", '{"prompt": " "}', '{"prompt": 3}', '{"prompt": "x", "more": 1}', "[]"):
        with pytest.raises(InvalidArguments):
            prompt_in("clerk", wrong)
