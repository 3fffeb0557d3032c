"""A process that runs trials one after another, so that none waits for Python, torch or Ray to start.

It is started by `raypid.sweep.processes` and speaks JSON: orders and answers come, and events go, through the connection whose
file descriptor its argument names. It ends when that does, so it never outlives the search.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from raypid.envs.closing import end_by_parent, within
from raypid.envs.errors import EnvError
from raypid.errors import HEAD, Diverged, UserError
from raypid.plugins.project import find_project
from raypid.report.panel import Messages
from raypid.run.agent import Agent
from raypid.run.resolve import resolve
from raypid.run.run import Run, RunOptions
from raypid.runtime.resources import num_cores, num_gpus
from raypid.settings.config import is_none, overlay
from raypid.settings.request import RunRequest
from raypid.storage.outputs import Unwritten
from raypid.storage.ownership import put_on_path
from raypid.storage.run_folder import EVALUATION
from raypid.sweep.budget import LATE

INTERVAL = "evaluation/episode_reward_ci95"
FRESH = 0.9
"""An evaluation counts as that of a moment if it is not older than this part of its seconds."""
Point: TypeAlias = tuple[float, float, float]
"""Seconds of training, mean return of an evaluation, half width of its 95% interval (NaN: it played one episode)."""


def main() -> None:
    """Run trials until the search ends, and with it the connection."""
    end_by_parent()
    put_on_path([])
    find_project(Path.cwd())
    search: Connection = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            order = _received(search)
            if order["do"] == "trial":  # else it crossed the end of the trial before
                _trial(order, search)


def _say(search: Connection, **event: object) -> None:
    search.send_bytes(json.dumps(event).encode())


def _received(search: Connection) -> dict[str, Any]:
    """What the search says next."""
    message: dict[str, Any] = json.loads(search.recv_bytes())
    return message


class _TooLong(BaseException):  # no Exception, for which a run would save what it has
    """Raised inside an iteration that takes longer than a whole trial."""


_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (_TooLong, "slow"), (EnvError, "error"), (UserError, "user"), (Unwritten, "unwritten"), (Diverged, "diverged"), (Exception, "error"),
)  # fmt: skip
"""Errors -> what has failed, as an event says it (`raypid.sweep.search.BY_SETTINGS`); the first that fits."""


def _trial(order: Mapping[str, Any], search: Connection) -> None:
    """Run one trial and report how it ended. An error of any kind ends the trial alone."""
    about: dict[str, object] = {"event": "ended", "trial": order["trial"]}
    try:
        _say(search, **about, **_train(order, search))
    except (Exception, _TooLong) as error:
        kind = next(kind for cls, kind in _KINDS if isinstance(error, cls))
        message = str(error)
        own = message.rpartition("\nraypid: ")[0] if message.startswith(HEAD) else ""  # the user's code raised
        text = getattr(error, "worker_traceback", "") or own or "".join(traceback.format_exception(error))
        _say(search, **about, state="failed", kind=kind, message=message, traceback=text)


def _train(order: Mapping[str, Any], search: Connection) -> dict[str, object]:
    """Train to the moments that the search names; at each say what was reached. Returns how the trial ended, and its curve."""
    began = time.monotonic()
    folder, until, state = Path(order["folder"]), order["until"], ""
    if order["on_ray"] and "raypid.runtime.ray" not in sys.modules:
        _hold_ray(order["settings"])
    settings, below = overlay({}, order["settings"]), overlay(order["below"], {})
    agent = Agent(resolve(RunRequest(run=order["run"], settings=settings, recorded=below, out=folder)))
    try:
        curve: list[Point] = [tuple(order["before"] or _evaluation(agent))]
        options = RunOptions(stop=order["stop"], checkpoint_interval=10**9, final_episodes=0, plot=order["keep"])
        run = Run(agent, options, Messages())
        run.begin()
        agent.control.reset(in_run=True, time_s=until)
        most_s = order["first_within"]
        too_long = _TooLong(f"its first iteration took longer than {most_s or 0:.2g} s")
        while not state:
            with within(None if agent.iteration else most_s, too_long):
                result = run.advance(0.0)  # one iteration
            if EVALUATION in result:
                curve.append((result["time_total_s"], result[EVALUATION], result[INTERVAL]))
            now = agent.time_total_s
            if run.reason:
                state = "goal" if run.reason.startswith("evaluation/") else "finished"
            elif search.poll():
                state = _received(search)["state"]
            elif (
                now >= until or now + result["time_this_iter_s"] > LATE * until
            ):  # or one more iteration would end too late
                _refresh(curve, agent)
                _say(search, event="moment", trial=order["trial"], until=until, curve=curve)
                answer = _received(search)
                until, state = answer["until"], answer["state"]
                agent.control.reset(in_run=True, time_s=until)
        if state == "finished":
            _refresh(curve, agent)
        if order["keep"] and state in ("finished", "goal"):
            run.end("the time of the trial is over")
        else:
            run.leave()
        wall_s = time.monotonic() - began
        return {"curve": curve, "state": state, "seconds": agent.time_total_s, "wall_s": wall_s}
    finally:
        agent.close()


def _hold_ray(settings: Mapping[str, Any]) -> None:
    """Start or join Ray for this process, where it stays: agents find it there and leave it running."""
    from raypid.runtime.ray import RayBackend

    address, cpus = (None if is_none(settings.get(name)) else settings[name] for name in ("address", "num_cpus"))
    RayBackend(address, num_cpus=cpus or num_cores(), num_gpus=num_gpus())


def _evaluation(agent: Agent) -> Point:
    """Evaluate now."""
    found = agent.eval()
    return agent.time_total_s, found["episode_reward_mean"], found["episode_reward_ci95"]


def _refresh(curve: list[Point], agent: Agent) -> None:
    """Evaluate now if the last evaluation of a curve is old."""
    if curve[-1][0] < FRESH * agent.time_total_s:
        curve.append(_evaluation(agent))


if __name__ == "__main__":
    main()
