"""The catalogue of errors: complete, coded, and with a remedy each."""

import re

import pytest

from commitline import errors
from commitline.errors import CommitlineError

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, CommitlineError)
}


def drawn() -> list[tuple[str, str | None, str | None]]:
    """What the module's tree says of each class: its name, its base and its code."""
    found: list[tuple[str, str | None, str | None]] = []
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.fullmatch(
            r" {4}(?P<stem>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: +(?P<code>[A-Z]+\w*\d+))?.*", line
        )
        if match:
            depth = len(match["stem"]) // 4
            above = [*above[:depth], match["name"]]
            found.append((match["name"], above[depth - 1] if depth else None, match["code"]))
    return found


def test_the_tree_at_the_top_is_that_of_the_classes() -> None:
    classes = [
        (
            name,
            None if each is CommitlineError else each.__bases__[0].__name__,
            vars(each).get("code"),
        )
        for name, each in CLASSES.items()
    ]

    assert sorted(drawn(), key=str) == sorted(classes, key=str)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_that_is_raised_has_a_code_and_a_remedy_of_its_own(name: str) -> None:
    each = CLASSES[name]
    if name == "CommitlineError" or each.__subclasses__():
        return  # a base, which is caught and not raised

    assert "code" in vars(each)
    assert "remedy" in vars(each)
    assert each.remedy.endswith(".")
    assert str(each("what happened")) == f"what happened [{each.code}] {each.remedy}"


def test_no_two_errors_share_a_code() -> None:
    codes = [vars(each)["code"] for each in CLASSES.values() if "code" in vars(each)]

    assert len(codes) == len(set(codes))
