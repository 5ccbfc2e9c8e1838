"""The confirmation of large changes, at its exact limits."""

from __future__ import annotations

import io
import sys

import pytest
import typer

from penstock.cli.confirm import confirm
from penstock.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def answers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(request.param))


@pytest.mark.parametrize(("count", "yes", "force"), [(0, False, False), (20, False, False), (10_000, True, False),
                                                     (10_001, True, True)])  # fmt: skip
def test_what_is_small_or_confirmed_goes_on(count: int, yes: bool, force: bool) -> None:
    confirm("retrying", count, yes=yes, force=force)


@pytest.mark.parametrize(
    ("count", "yes", "force", "option"),
    [(21, False, False, "--yes"), (21, False, True, "--yes"), (10_000, False, False, "--yes"),
     (10_001, True, False, "--force"), (10_001, False, False, "--force"), (10_001, False, True, "--yes")],
)  # fmt: skip
def test_what_is_large_is_refused_with_the_option_that_allows_it(
    count: int, yes: bool, force: bool, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))  # a pipe cannot confirm
    with pytest.raises(UsageError) as refused:
        confirm("retrying", count, yes=yes, force=force)
    assert option in str(refused.value)
    assert f"{count:,}" in str(refused.value)


@pytest.mark.parametrize("answers", ["y\n"], indirect=True)
@pytest.mark.usefixtures("answers")
def test_somebody_at_a_terminal_is_asked_and_may_agree(capsys: pytest.CaptureFixture[str]) -> None:
    confirm("changing", 21, yes=False, force=False, noun="customer")
    said = capsys.readouterr()
    assert "21 customers?" in said.err
    assert said.out.strip() == "", "standard output is for the answer"


@pytest.mark.parametrize("answers", ["n\n", "\n"], indirect=True)
@pytest.mark.usefixtures("answers")
def test_somebody_at_a_terminal_may_refuse() -> None:
    with pytest.raises(typer.Abort):
        confirm("changing", 21, yes=False, force=False)
