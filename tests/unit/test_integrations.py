"""How the calls of other frameworks are read, and what their results mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio import activity
from temporalio.converter import PayloadConverter

from commitline import Effect
from commitline.integrations import effect, mcp_effects
from commitline.integrations.deepagents import DeepAgents
from commitline.integrations.family import ReportedFailure, ReportedRefusal
from commitline.integrations.mcp import MCP, hinted_rule
from commitline.integrations.mcp_wire import MCPRequest
from commitline.integrations.pydantic_ai import PydanticAI
from commitline.integrations.ruled_call import not_declared
from commitline.integrations.rules import Rules
from commitline.ledger import Outcome

CONVERTER = PayloadConverter.default
TOOLS = "agent__clerk__toolset__clerk__call_tool"
MCP_TOOLS = "agent__clerk__mcp_server__bank__call_tool"
DYNAMIC_TOOLS = "agent__clerk__dynamic_toolset__some__call_tool"
BANK = "temporalio.mcp.bank.call-tool"


@dataclass
class Params:
    name: str
    tool_args: dict[str, Any]
    tool_def: Any = None


@dataclass
class Returned:
    kind: str
    message: str = ""


def of_pydantic_ai(kind: str, metadata: Any = None) -> Any:
    params = Params("charge", {"cents": 1}, SimpleNamespace(metadata=metadata))
    family = PydanticAI({})
    call = family.tool_call(kind, [params, None], CONVERTER)
    return family.arrived(call, [params, None], print, CONVERTER)


@pytest.mark.parametrize(
    ("kind", "returned"),
    [
        (TOOLS, Returned("tool_failed", "no")),
        (TOOLS, Returned("run_cancelled", "no")),
        (TOOLS, Returned("validation_error")),  # of what a tool read after its effect
        (TOOLS, Returned("model_retry", "Timed out after 3 seconds.")),
        (MCP_TOOLS, Returned("model_retry", "connection lost")),
        (DYNAMIC_TOOLS, Returned("model_retry", "connection lost")),
    ],
)
def test_a_tool_of_pydantic_ai_that_failed_may_have_acted(kind: str, returned: Returned) -> None:
    with pytest.raises(ReportedFailure):
        of_pydantic_ai(kind).checked(returned)


@pytest.mark.parametrize(
    "returned",
    [
        Returned("model_retry", "which order?"),
        Returned("approval_required"),
        Returned("call_deferred"),
    ],
)
def test_a_tool_of_pydantic_ai_that_asks_to_be_called_otherwise_did_nothing(
    returned: Returned,
) -> None:
    with pytest.raises(ReportedRefusal):
        of_pydantic_ai(TOOLS).checked(returned)


@pytest.mark.parametrize("metadata", [{"commitline": True}, {"commitline": {"effect": "x"}}])
def test_metadata_that_is_no_rule_leaves_a_tool_without_one(metadata: Any) -> None:
    params = Params("charge", {}, SimpleNamespace(metadata=metadata))

    assert PydanticAI({}).tool_call(TOOLS, [params, None], CONVERTER).rule is None


def request(**more: Any) -> dict[str, Any]:
    return {"name": "pay", "arguments": {"cents": 1}, "factory_argument": None, "meta": None} | more


def test_what_chose_the_client_of_an_mcp_server_counts_and_is_kept() -> None:
    family = MCP({})
    ours, theirs, nobodys = (
        family.tool_call(BANK, [request(factory_argument=tenant)], CONVERTER)
        for tenant in ("ours", "theirs", None)
    )

    assert len({one.requested_digest for one in (ours, theirs, nobodys)}) == 3
    arrived = family.arrived(ours, [request(factory_argument="theirs")], print, CONVERTER)
    (sent,) = arrived.args_with(ours.arguments)
    assert (sent["arguments"], sent["factory_argument"]) == ({"cents": 1}, "ours")
    assert arrived.named(ours.arguments) == {"cents": 1}


def test_arguments_that_are_no_json_in_our_sense_arrive_as_they_are() -> None:
    family, odd = MCP({}), request(arguments={"rate": float("inf")})
    call = family.tool_call(BANK, [odd], CONVERTER)

    (sent,) = family.arrived(call, [odd], print, CONVERTER).args_with(call.arguments)

    assert sent["arguments"] == {"rate": float("inf")}


@pytest.mark.parametrize(
    ("errors_refuse", "raised"), [(False, ReportedFailure), (True, ReportedRefusal)]
)
def test_an_mcp_result_that_is_an_error_may_come_after_the_effect(
    errors_refuse: bool, raised: type[Exception]
) -> None:
    family = MCP({"bank": mcp_effects(errors_refuse=errors_refuse)})
    call = family.tool_call(BANK, [request()], CONVERTER)
    arrived = family.arrived(call, [request()], print, CONVERTER)

    with pytest.raises(raised, match="no such account"):
        arrived.checked({"isError": True, "content": [{"type": "text", "text": "no such account"}]})


def test_a_call_of_another_workers_activity_is_named_too() -> None:
    rules = Rules({"mail": effect(Effect.AT_MOST_ONCE)})

    unknown = rules.tool_call("charge", ["4821"], CONVERTER)
    known = rules.tool_call("mail", ["ada"], CONVERTER)

    assert unknown is not None
    assert (unknown.tool, unknown.arguments, unknown.rule) == ("charge", ["4821"], None)
    assert known is not None
    assert known.rule == effect(Effect.AT_MOST_ONCE)
    assert rules.tool_call("agent__clerk__toolset__clerk__get_tools", [], CONVERTER) is None


def test_only_what_openai_agents_schedules_is_told_as_a_text() -> None:
    rules = Rules({"mail": effect(Effect.AT_MOST_ONCE)})
    call = rules.tool_call("mail", ["ada"], CONVERTER)
    assert call is not None

    rules.tell_for(["OpenAIAgentsPlugin", "commitline.LedgerPlugin"])

    assert rules.telling(call, by_name=True) == "text"
    assert rules.telling(call, by_name=False) == "failure"


@dataclass
class StrandsCall:
    tool_name: str
    arguments: dict[str, Any]
    tool_use_id: str = "use-1"


def test_an_mcp_call_of_strands_is_read_and_told_by_its_own_messages() -> None:
    family = MCP({"post": mcp_effects()})
    given = [StrandsCall("mail", {"to": "ada"})]
    call = family.tool_call("post-call-tool", given, CONVERTER)
    arrived = family.arrived(call, given, print, CONVERTER)

    assert (call.tool, call.arguments) == ("post.mail", {"to": "ada"})
    again = family.tool_call(
        "post-call-tool", [StrandsCall("mail", {"to": "ada"}, "use-2")], CONVERTER
    )
    assert again.requested_digest == call.requested_digest
    # What Strands returns of a lost connection is no answer of the server's.
    lost = {"status": "error", "toolUseId": "use-1", "content": [{"text": "closed"}]}
    with pytest.raises(ReportedFailure, match="closed"):
        arrived.checked(lost)
    assert MCPRequest(given).error_result("?", CONVERTER) == {
        "status": "error",
        "toolUseId": "use-1",
        "content": [{"text": "?"}],
    }


def test_only_servers_that_are_named_have_activities_of_the_short_names() -> None:
    family = MCP({"post": mcp_effects()})

    assert family.serves("post-call-tool-v2")
    assert family.knows("post-list-tools")
    # What keeps the session of a stateful server calls no tool.
    assert MCP({"post-stateful": mcp_effects()}).knows("post-stateful-server-session")
    assert not family.serves("other-call-tool")
    assert not family.knows("other-list-tools")


@pytest.mark.parametrize(
    ("annotations", "rule"),
    [
        ({"readOnlyHint": True}, effect(Effect.READ)),
        ({"idempotentHint": True, "destructiveHint": True}, effect(Effect.IDEMPOTENT)),
        ({"destructiveHint": False}, None),
        ({"readOnlyHint": "yes"}, None),
        (None, None),
    ],
)
def test_what_annotations_of_a_tool_say(annotations: Any, rule: Any) -> None:
    assert hinted_rule(annotations) == rule


@pytest.mark.parametrize(
    ("trusted", "tool", "what"),
    [
        (True, "look", Effect.READ),
        (False, "look", Effect.AT_MOST_ONCE),
        (True, "named", Effect.IDEMPOTENT),  # what the application says counts for more
    ],
)
def test_hints_of_pydantic_ais_mcp_servers_count_only_where_they_are_trusted(
    trusted: bool, tool: str, what: Effect
) -> None:
    named = {"named": effect(Effect.IDEMPOTENT)}
    servers = {"bank": mcp_effects(tools=named, trust_hints=trusted)}
    metadata = {"annotations": {"readOnlyHint": True}}
    params = Params(tool, {}, SimpleNamespace(metadata=metadata))

    call = PydanticAI({}, servers).tool_call(MCP_TOOLS, [params, None], CONVERTER)

    assert call.rule is not None
    assert call.rule.effect == what


def test_the_tools_of_deepagents_are_told_apart_and_its_ids_count_for_nothing() -> None:
    family = DeepAgents({"mail": effect(Effect.AT_MOST_ONCE)})

    def call(id: str, op: str = "") -> Any:
        if op:
            given = BackendOp("ref", op, ["a.txt"])
            return family.tool_call("deepagents.backend_op", [given], CONVERTER)
        tool = ToolInput("mail", id, {"to": "ada"})
        return family.tool_call("deepagents.invoke_tool", [tool], CONVERTER)

    assert call("1").requested_digest == call("2").requested_digest
    assert call("1").rule == effect(Effect.AT_MOST_ONCE)
    assert call("", "aread").rule == effect(Effect.READ)
    assert call("", "write").rule is None  # answered as a tool without a rule


@dataclass
class ToolInput:
    tool_name: str
    tool_call_id: str
    args: dict[str, Any]


@dataclass
class BackendOp:
    backend_ref: str
    op: str
    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    backend_factory: str | None = None
    factory_argument: Any = None


@pytest.mark.parametrize(
    ("plugin", "style"),
    [
        ("langchain.DeepAgentsPlugin", "text"),
        ("google.AdkPlugin", "data"),
        ("google_genai.GoogleGenAIPlugin", "data"),
        ("aws.StrandsPlugin", "failure"),
    ],
)
def test_each_framework_is_told_as_it_needs_it(plugin: str, style: str) -> None:
    rules = Rules({"mail": effect(Effect.AT_MOST_ONCE)})
    call = rules.tool_call("mail", ["ada"], CONVERTER)
    assert call is not None

    rules.tell_for([plugin, "commitline.LedgerPlugin"])

    assert rules.telling(call, by_name=False) == style


def test_what_genai_registers_whether_it_is_used_or_not_needs_no_rule_until_it_is_called() -> None:
    @activity.defn(name="gemini_files_upload")
    async def upload(req: str) -> str:
        return req

    rules = Rules({})
    rules.add([upload])

    call = rules.tool_call("gemini_files_upload", ["x"], CONVERTER)
    assert rules.family("gemini_files_upload") is not None
    assert call is not None
    assert call.rule is None
    assert rules.family("gemini_files_download") is None


@dataclass
class Confirmation:
    """ADK's `ToolConfirmation`."""

    hint: str = ""
    confirmed: bool = False


@dataclass
class EventActions:
    requested_tool_confirmations: dict[str, Confirmation] = field(default_factory=dict)


@dataclass
class ADKContext:
    """The `TemporalToolContext` of ADK's plugin."""

    function_call_id: str
    tool_confirmation: Confirmation | None = None
    event_actions: EventActions = field(default_factory=EventActions)


@dataclass
class ADKRequest:
    name: str
    arguments: dict[str, Any]
    tool_context: ADKContext
    factory_argument: Any = None


@dataclass
class ADKResult:
    result: Any
    tool_context: ADKContext


def of_adk(context: ADKContext) -> tuple[Any, Any]:
    """Return a call of ADK, and what its framework's workflow half is replied by."""
    family, args = MCP({"bank": mcp_effects()}), [ADKRequest("wire", {"cents": 1}, context)]
    call = family.tool_call("bank-call-tool", args, CONVERTER)
    return family.arrived(call, args, print, CONVERTER), family.replies(args)


def test_a_call_of_adk_that_asks_for_a_confirmation_sent_nothing_and_is_handed_on() -> None:
    asks = ADKContext("adk-1")
    asks.event_actions.requested_tool_confirmations["adk-1"] = Confirmation("sure?")
    said = {"error": "This tool call requires confirmation, please approve or reject."}
    call, _ = of_adk(asks)
    _, after_reset = of_adk(ADKContext("adk-2"))

    with pytest.raises(ReportedRefusal) as refused:
        call.checked(ADKResult(said, asks))
    recorded = Outcome.error(
        kind=refused.value.kind, message=str(refused.value), effect_possible=False
    )
    replied = CONVERTER.from_payload(after_reset.done("key", recorded, None, None).payload)

    assert replied["result"] == said
    assert replied["tool_context"]["function_call_id"] == "adk-2"
    asked = replied["tool_context"]["event_actions"]["requested_tool_confirmations"]
    assert asked == {"adk-2": {"hint": "sure?", "confirmed": False}}


def test_a_call_of_adk_that_a_person_rejected_sent_nothing() -> None:
    rejected = ADKContext("adk-1", tool_confirmation=Confirmation(confirmed=False))
    confirmed = ADKContext("adk-1", tool_confirmation=Confirmation(confirmed=True))
    call, _ = of_adk(rejected)

    with pytest.raises(ReportedRefusal, match="is rejected"):
        call.checked(ADKResult({"error": "This tool call is rejected."}, rejected))
    with pytest.raises(ReportedFailure, match="lost"):
        call.checked(ADKResult({"error": "connection lost"}, confirmed))


def test_a_tool_without_an_effect_is_in_the_log_since_only_a_model_reads_why() -> None:
    with capture_logs() as logs:
        told = not_declared("charge")

    assert "'charge' has no effect, so nothing was called: declare READ" in told.message
    assert [(one["event"], one["log_level"], one["tool"]) for one in logs] == [
        ("tool.effect_not_declared", "warning", "charge")
    ]
