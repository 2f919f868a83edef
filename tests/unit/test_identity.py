"""Names: no two things share one, and what cannot be a name is refused at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitline.errors import DefinitionError, InvalidIdempotencyKey, InvalidRunId
from commitline.idempotency_key import (
    KeyTemplate,
    check_idempotency_key,
    default_idempotency_key,
    with_generation,
)
from commitline.identity import (
    ActionKey,
    Position,
    RunKey,
    action_key,
    action_key_within,
    check_any_workflow_id,
    check_run_id,
    check_workflow_id,
    depth_of,
    parent_of,
    position,
    position_below,
    position_in_parent,
    run_key,
    started_workflow_of,
    sub_run_key,
    sub_workflow,
    within_run,
)

UUID = "0198c1f0-0000-7000-8000-000000000001"

workflow_ids = st.text(
    st.sampled_from("rR1:/%.~ -"), min_size=1, max_size=8
).filter(str.strip)  # fmt: skip
execution_ids = st.text(st.sampled_from("0a-"), min_size=1, max_size=4)
positions = st.text(st.sampled_from("01.:%3A/"), min_size=1, max_size=6)
steps = st.builds(position, st.integers(0, 2), st.integers(0, 2), epoch=st.integers(0, 1))
texts = st.text(min_size=1, max_size=6) | st.sampled_from(["-", "%", "%2D", "a-b", "~2", "\ud83d"])


@pytest.mark.parametrize(
    "workflow_id",
    ["r1", "R1", "r1:1", "r1:1:2", "a/b", "a b", "thread:4711", "x" * 180],
)
def test_an_id_of_printable_ascii_may_be_a_runs(workflow_id: str) -> None:
    assert check_workflow_id(workflow_id) == workflow_id


@pytest.mark.parametrize(
    ("workflow_id", "reason"),
    [
        ("", "must not be empty"),
        (" ", "must not be empty"),
        ("a\x00b", "holds characters that it may not: 'a\\x00b'"),
        ("a\n", "holds characters that it may not: 'a\\n'"),
        ("a\x7f", "holds characters that it may not"),
        ("bestellung-ä", "holds characters that it may not: 'bestellung-\\xe4'"),
        ("\ud83d", "holds characters that it may not: '\\ud83d'"),
        ("a" * 181, "has 181 characters, over 180"),
        ("a" * 9_000, "has 9000 characters, over 180"),
    ],
    ids=["empty", "blank", "nul", "newline", "delete", "umlaut", "surrogate", "181", "9000"],
)
def test_an_unusable_id_is_refused_before_anything_is_made_of_it(
    workflow_id: str, reason: str
) -> None:
    with pytest.raises(InvalidRunId) as refused:
        run_key(workflow_id, UUID)

    assert reason in refused.value.message
    assert refused.value.code == "CL102"


@pytest.mark.parametrize("execution", ["", "a/b", "a:b", "a b", "é", "a" * 65, f"{UUID}\n"])
def test_an_execution_id_that_could_blur_the_run_key_is_refused(execution: str) -> None:
    with pytest.raises(InvalidRunId):
        run_key("r1", execution)


def test_keys_are_written_as_documented() -> None:
    run = run_key("support-4821", UUID)

    key = action_key(run, position(2, 0))

    assert run == f"support-4821/{UUID}"
    assert key == f"support-4821/{UUID}:2.0"
    assert default_idempotency_key(key) == "cl_re3zewex65vmduanji6sblt4ifvvfzj7hzgmq7aq"


def test_a_separator_in_a_position_does_not_make_another_action() -> None:
    inside = action_key(RunKey("r/1"), Position("1:2"))
    outside = action_key(RunKey("r/1:1"), Position("2"))

    assert inside == "r/1:1%3A2"
    assert outside == "r/1:1:2"


@given(st.tuples(workflow_ids, execution_ids), st.tuples(workflow_ids, execution_ids))
def test_two_runs_never_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (run_key(*one) == run_key(*other)) == (one == other)


@given(
    st.tuples(workflow_ids, execution_ids, positions),
    st.tuples(workflow_ids, execution_ids, positions),
)
def test_two_actions_never_share_a_key(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    keys = {
        action_key(run_key(workflow, execution), Position(at))
        for workflow, execution, at in (one, other)
    }

    assert (len(keys) == 1) == (one == other)


@given(st.text(max_size=40).filter(str.isascii))
def test_a_default_idempotency_key_is_short_ascii_and_always_the_same(action: str) -> None:
    key = default_idempotency_key(ActionKey(action))

    assert len(key) == 43
    assert key.startswith("cl_")
    assert set(key[3:]) <= set("abcdefghijklmnopqrstuvwxyz234567")
    assert key == default_idempotency_key(ActionKey(action))


def test_only_a_later_generation_is_marked() -> None:
    keys = [with_generation("order-4821-charge", generation) for generation in (1, 2, 3)]

    assert keys == ["order-4821-charge", "order-4821-charge~2", "order-4821-charge~3"]


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("4821", "order-4821-charge"),
        (4821, "order-4821-charge"),
        (-1, "order-%2D1-charge"),
        (1.5, "order-1%2E5-charge"),
        (True, "order-true-charge"),
        ("a-b", "order-a%2Db-charge"),
        ("a_b.c~d", "order-a%5Fb%2Ec%7Ed-charge"),
        ("100%", "order-100%25-charge"),
        ("é", "order-%C3%A9-charge"),
        ("\x00", "order-%00-charge"),
        ("\ud83d", "order-%ED%A0%BD-charge"),
        (["a", "b"], "order-%5B%22a%22%2C%22b%22%5D-charge"),
        ({"b": 1, "a": 2}, "order-%7B%22a%22%3A2%2C%22b%22%3A1%7D-charge"),
    ],
)
def test_a_template_escapes_everything_but_letters_and_digits(value: object, key: str) -> None:
    template = KeyTemplate.parse("order-{order_id}-charge")

    assert template.render({"order_id": value}) == key


def test_a_template_names_its_parameters_and_takes_the_rest_as_it_stands() -> None:
    template = KeyTemplate.parse("{shop}/{order_id}: charge {{again}}")

    assert template.fields == {"shop", "order_id"}
    assert template.render({"shop": "s", "order_id": 1, "more": 2}) == "s/1: charge {again}"


@pytest.mark.parametrize("arguments", [{}, {"order_id": None}, {"order_id": ""}])
def test_a_missing_or_empty_value_gives_no_key(arguments: dict[str, object]) -> None:
    template = KeyTemplate.parse("order-{order_id}")

    with pytest.raises(InvalidIdempotencyKey, match="needs 'order_id', which is empty"):
        template.render(arguments)


def test_a_key_that_leaves_no_room_for_a_generation_is_refused_and_not_cut() -> None:
    template = KeyTemplate.parse("order-{order_id}")

    assert len(template.render({"order_id": "x" * 241})) == 247
    with pytest.raises(InvalidIdempotencyKey, match="has 248 characters, over 247"):
        template.render({"order_id": "x" * 242})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must name parameters"),
        ("order-charge", "must name parameters"),
        ("order-{}", "must name parameters"),
        ("order-{0}", "must name parameters"),
        ("order-{order.id}", "must name parameters"),
        ("order-{order[id]}", "must name parameters"),
        ("order-{order_id!r}", "must name parameters"),
        ("order-{order_id:>9}", "must name parameters"),
        ("order-{order_id", "is not a template"),
        ("order-order_id}", "is not a template"),
        ("{a}{b}", "needs a separator"),
        ("{a}x{b}", "needs a separator"),
        ("{a}%{b}", "needs a separator"),
        ("order-{order_id}~2", "may hold printable ASCII except '~'"),
        ("größe-{order_id}", "may hold printable ASCII except '~'"),
        ("order-{order_id}\n", "may hold printable ASCII except '~'"),
    ],
)
def test_a_template_that_could_blur_two_facts_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        KeyTemplate.parse(text)


@pytest.mark.parametrize("text", ["{a}-{b}", "x-{a}1-{b}", "{a} {b}", "{a}:{b}:{a}", "{a}_{b}/"])
@given(one=st.tuples(texts, texts), other=st.tuples(texts, texts))
def test_two_lists_of_values_never_share_a_domain_key(
    text: str, one: tuple[str, str], other: tuple[str, str]
) -> None:
    template = KeyTemplate.parse(text)

    keys = {template.render({"a": a, "b": b}) for a, b in (one, other)}

    assert (len(keys) == 1) == (one == other)
    assert all(key.isascii() and "~" not in key for key in keys)


@given(
    st.tuples(texts, st.integers(min_value=1, max_value=30)),
    st.tuples(texts, st.integers(min_value=1, max_value=30)),
)
def test_a_generation_is_never_taken_for_another_facts_key(
    one: tuple[str, int], other: tuple[str, int]
) -> None:
    template = KeyTemplate.parse("order-{order_id}")

    keys = {
        with_generation(template.render({"order_id": value}), generation)
        for value, generation in (one, other)
    }

    assert (len(keys) == 1) == (one == other)


TOP = run_key("r1", UUID)


def test_a_sub_agents_run_is_named_by_its_parent_and_the_call() -> None:
    below = sub_run_key(sub_run_key(TOP, Position("2.0")), Position("e1-0.13"))

    assert below == f"r1/{UUID}/2.0/e1-0.13"
    assert parent_of(below) == f"r1/{UUID}/2.0"
    assert position_in_parent(below) == "e1-0.13"
    assert position_below(TOP, below) == "2.0"
    assert position_below(RunKey(f"r2/{UUID}"), below) is None
    assert (depth_of(below), depth_of(TOP)) == (2, 0)
    assert started_workflow_of(below) == started_workflow_of(TOP) == "r1"
    assert within_run(below, Position("4.1")) == "2.0/e1-0.13/4.1"
    assert within_run(TOP, Position("4.1")) == "4.1"
    assert action_key_within(TOP, "2.0/e1-0.13/4.1") == action_key(below, Position("4.1"))
    assert action_key_within(TOP, "4.1") == action_key(TOP, Position("4.1"))


@pytest.mark.parametrize(
    "workflow_id", ["a/2.0", "2.0", "a/0.0/1.0", f"a/0.0/{UUID}", "thread:1.0", "1.0/1.0"]
)
def test_a_run_that_was_started_lies_below_none_whatever_its_id_looks_like(
    workflow_id: str,
) -> None:
    started = run_key(workflow_id, UUID)

    assert parent_of(started) is None
    assert parent_of(sub_run_key(started, Position("0.1"))) == started
    assert started_workflow_of(sub_run_key(started, Position("0.1"))) == workflow_id


def test_what_the_outbox_sends_lies_below_no_run_whatever_its_key_looks_like() -> None:
    assert parent_of(RunKey("outbox/a/1.0")) is None


@given(
    st.tuples(workflow_ids, execution_ids, st.lists(steps, max_size=3)),
    st.tuples(workflow_ids, execution_ids, st.lists(steps, max_size=3)),
)
def test_no_two_runs_share_a_key_however_deep_they_lie(
    one: tuple[str, str, list[Position]], other: tuple[str, str, list[Position]]
) -> None:
    keys = []
    for workflow_id, execution, path in (one, other):
        key = run_key(workflow_id, execution)
        for step in path:
            key = sub_run_key(key, step)
        assert depth_of(key) == len(path)
        assert started_workflow_of(key) == workflow_id
        keys.append(key)

    assert (keys[0] == keys[1]) == (one == other)


def test_a_sub_agents_workflow_may_have_a_longer_id_than_one_that_is_started() -> None:
    deepest = sub_workflow(sub_workflow("x" * 180, Position("2.0"), UUID), Position("0.1"), UUID)

    assert check_any_workflow_id(deepest) == deepest
    for refused in ("x" * 181, deepest + "!", deepest.replace("x", "\n"), ""):
        with pytest.raises(InvalidRunId):
            check_any_workflow_id(refused)


@pytest.mark.parametrize(
    "workflow_id", ["outbox", "outbox/a", "settle:a", "undo:a", "thread:a", "settle:", "a\n"]
)
def test_an_id_that_is_ours_starts_no_run(workflow_id: str) -> None:
    with pytest.raises(InvalidRunId):
        check_run_id(workflow_id)


@pytest.mark.parametrize("workflow_id", ["outbox-1", "my/outbox/1", "settled", "undo", "Outbox"])
def test_an_id_that_only_looks_like_ours_starts_one(workflow_id: str) -> None:
    assert check_run_id(workflow_id) == workflow_id


@pytest.mark.parametrize("workflow_id", ["outbox", "outbox/a"])
def test_no_workflow_of_anybodys_has_a_run_key_of_the_outbox(workflow_id: str) -> None:
    with pytest.raises(InvalidRunId):
        run_key(workflow_id, "01985f6e")

    assert run_key("undo:a", "01985f6e")  # our own workflows are workflows


@pytest.mark.parametrize("key", ["", "  ", "a~2", "größe", "a\nb", "\x7f", "k" * 248])
def test_a_key_that_cannot_be_sent_or_blurs_generations_is_refused(key: str) -> None:
    with pytest.raises(InvalidIdempotencyKey):
        check_idempotency_key(key)


def test_a_key_is_taken_as_it_is() -> None:
    for key in ("order 1/{a}:%2E", "k" * 247):
        assert check_idempotency_key(key) == key
