"""Ids that people bring: which package registers them, and what those of old Gym and of other simulators are called now."""

from __future__ import annotations

import re
from dataclasses import dataclass

import gymnasium


@dataclass(frozen=True, slots=True)
class Package:
    """A package that registers ids with Gymnasium when it is imported."""

    module: str
    """What is imported."""
    package: str
    """What pip installs."""
    ids: str
    """A regular expression of how its ids begin."""
    example: str
    left_out: tuple[str, ...] = ()
    """Parts of its Dict observations that are text, which no policy here reads."""


PACKAGES = (
    Package("minigrid", "minigrid", r"(MiniGrid|BabyAI)-", "MiniGrid-Empty-5x5-v0", ("mission",)),
    Package(
        "highway_env", "highway-env",
        r"(highway|merge|roundabout|parking|intersection|racetrack|exit|lane-keeping|two-way|u-turn)(-[\w-]+)?-v\d", "highway-v0",
    ),
    Package(
        "gymnasium_robotics", "gymnasium-robotics",
        r"(Fetch(Reach|Push|Slide|PickAndPlace)|Hand(Reach|Manipulate)|AdroitHand|AntMaze|PointMaze|FrankaKitchen)", "FetchReach-v4",
    ),
    Package("shimmy", "shimmy[dm-control]", r"dm_control/", "dm_control/cartpole-swingup-v0"),
    Package("shimmy", "shimmy[bsuite]", r"bsuite/", "bsuite/catch-v0"),
    Package("metaworld", "metaworld", r"Meta-World/", "Meta-World/MT1"),
    Package("panda_gym", "panda-gym", r"Panda(Reach|Push|Slide|PickAndPlace|Stack|Flip)", "PandaReach-v3"),
    Package("PyFlyt.gym_envs", "PyFlyt", r"PyFlyt/", "PyFlyt/QuadX-Hover-v4"),
    Package("flappy_bird_gymnasium", "flappy-bird-gymnasium", r"FlappyBird-", "FlappyBird-v0"),
    Package("miniworld", "miniworld", r"MiniWorld-", "MiniWorld-Hallway-v0"),
    Package("vizdoom.gymnasium_wrapper", "vizdoom", r"Vizdoom", "VizdoomBasic-v0"),
    Package("popgym", "popgym", r"popgym-", "popgym-RepeatPreviousEasy-v0"),
)  # fmt: skip
"""Packages whose ids are found without naming the package. Those of any other are written "package:id"."""

_OTHERS = r"^Roboschool|(PyBullet|MuJoCo|Mujoco|Bullet)?(Env)?-v\d+$"
"""What other simulators add to the name of a robot, and the version."""
_OLD = {
    r"GymV2[16]Environment-v0":
        "wraps environments of old Gym: give a function that makes yours, 'module:make'; its reset and step may be Gym's.",
    r"procgen|(procgen:)?procgen-(?P<game>\w+)-v0":
        "was made for old Gym. EnvPool has its games: 'envpool:{Game}Easy-v0' or 'envpool:{Game}Hard-v0'.",
    r"(?P<atari>[A-Z]\w*?)(-ram|Deterministic|NoFrameskip){0,2}-v[04]":
        "is an id of old Gym. Atari games are named 'ALE/{atari}-v5' or 'envpool:{atari}-v5'.",
    r"(?P<robot>\w+)-v[23]":
        "needs mujoco_py, which is not maintained: take '{robot}-v5' (rewards and observations differ a little) or '{robot}-v4'.",
}  # fmt: skip
"""Pattern of ids that cannot be made any more, or that old Gym had -> what to take."""


def bare(name: str) -> str:
    """An id without its version, and without what other simulators add to it."""
    return re.sub(_OTHERS, "", name)


def brought_by(name: str) -> Package | None:
    """The package that registers an id."""
    return next((package for package in PACKAGES if re.match(package.ids, name)), None)


def gone(name: str) -> str | None:
    """Say what to take in place of an id that cannot be made any more, or that old Gym had; None if there is nothing to say."""
    for pattern, text in _OLD.items():
        if (found := re.fullmatch(pattern, name)) and not _is_made(name, **found.groupdict()):
            return f"{name!r} {text.format(**found.groupdict(), Game=(found.groupdict().get('game') or 'coinrun').capitalize())}"
    return None


def _is_made(name: str, atari: str = "", robot: str = "", game: str = "") -> bool:
    """Whether an id that looks old is one that Gymnasium still makes, or that is nobody's game."""
    entry = getattr(gymnasium.registry.get(name), "entry_point", None)
    if atari:
        has_suffix = not name.startswith(f"{atari}-v")
        return not (has_suffix or str(entry).startswith("ale_py") or f"ALE/{atari}-v5" in gymnasium.registry)
    return bool(robot) and not callable(entry)
