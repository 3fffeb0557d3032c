"""What the terminal shows of an experiment."""

from __future__ import annotations

import io

from rich.console import Console

from raypid.sweep.board import Board, Ended


def failed(name: str, reason: str) -> Ended:
    return Ended(name=name, folder=name, state="failed", reason=reason, result={})


def test_it_says_at_once_what_starts_and_whose_traceback_it_shows() -> None:
    file = io.StringIO()
    with Board(6, 2, False, "runs/lr", file) as board:
        assert file.getvalue() == "4 of 6 trials in runs/lr, starting Ray.\n"
        for name in ("trial-003", "trial-004"):
            board.started(name)
            board.ended(failed(name, "Traceback (most recent call last):\n  theirs\nraypid: It raised."))
    assert file.getvalue().splitlines()[1:] == [
        "trial-003:",
        "Traceback (most recent call last):",
        "  theirs",
        "trial-003  failed: It raised.  (3 of 6)",
        "trial-004  failed: It raised.  (4 of 6)",
    ]


def test_the_line_about_all_trials_is_not_as_narrow_as_the_table() -> None:
    board = Board(4, 0, False, "runs/lr", io.StringIO())

    def shown() -> list[str]:
        console = Console(file=io.StringIO(), width=80)
        console.print(board._table())
        assert isinstance(console.file, io.StringIO)
        return [line.rstrip() for line in console.file.getvalue().splitlines()]

    assert shown() == ["4 trials in runs/lr, starting Ray"]
    board.started("trial-001")
    assert shown() == [
        "0 of 4 trials ended, 1 running, 0:00",
        "trial         steps  time  return  evaluation",
        "trial-001  starting",
    ]
    for name in ("trial-001", "trial-002"):
        board.ended(failed(name, "It raised."))
    assert shown() == ["2 of 4 trials ended, 2 failed, 0 running, 0:00"]
