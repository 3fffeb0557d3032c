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

    def is_called(self, name: str) -> bool:
        """Tell whether a name is that of the package itself."""
        plain = [text.replace("_", "-").lower() for text in (self.module.partition(".")[0], self.package, name)]
        return plain[-1] in plain[:-1]


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

_ATARI = r"(?P<game>[A-Z]\w*?)(?P<ram>-ram)?(?P<old>Deterministic|NoFrameskip)?-v[04]$"
_PROCGEN = r"(procgen:)?procgen-(?P<game>\w+?)-v0$"
_SIMULATOR = r"(Roboschool)?(?P<robot>\w+?)(?P<bullet>PyBullet|MuJoCo|Mujoco|Bullet)?(Env)?-v\d+$"
_MUJOCO_PY = r"(?P<robot>\w+)-v[23]$"


def bare(name: str) -> str:
    """An id without its version."""
    return re.sub(r"-v\d+$", "", name)


def brought_by(name: str) -> Package | None:
    """The package that registers an id, or that is itself called so."""
    return next((package for package in PACKAGES if re.match(package.ids, name) or package.is_called(name)), None)


def text_of(name: str) -> tuple[str, ...]:
    """Parts of an environment's Dict observations that are text."""
    return next((package.left_out for package in PACKAGES if re.match(package.ids, name)), ())


def gone(name: str) -> str | None:
    """Say what to take in place of an id that cannot be made any more, or that old Gym had; None if there is nothing to say."""
    if name in ("GymV21Environment-v0", "GymV26Environment-v0"):
        return f"{name!r} wraps environments of old Gym: give a function that makes yours, 'module:make'; its reset and step may be Gym's."
    if name == "procgen" or (game := re.match(_PROCGEN, name)):
        task = "Coinrun" if name == "procgen" else game["game"].capitalize()  # type: ignore[index]
        return (
            f"{name!r} was made for old Gym. EnvPool has its games: 'envpool:{task}Easy-v0' or 'envpool:{task}Hard-v0'."
        )
    return _old_atari(name) or _old_robot(name)


def _old_atari(name: str) -> str | None:
    found = re.match(_ATARI, name)
    if found is None:
        return None
    game = found["game"]
    registered = str(getattr(gymnasium.registry.get(name), "entry_point", "")).startswith("ale_py")
    if not (found["ram"] or found["old"] or registered or game in _GAMES or f"ALE/{game}-v5" in gymnasium.registry):
        return None
    more = ""
    if found["ram"]:
        more = ' Its RAM is observed with env_config {"obs_type": "ram"} and atari false.'
    elif found["old"] == "NoFrameskip":
        more = ' These skip frames by themselves; an action is repeated by chance, unless env_config has {"repeat_action_probability": 0.0}.'
    return f"{name!r} is an id of old Gym. Atari games are named 'ALE/{game}-v5' or 'envpool:{game}-v5'.{more}"


_GAMES = frozenset({
    "Asteroids", "Assault", "BeamRider", "Boxing", "Breakout", "Enduro", "Freeway", "MontezumaRevenge", "MsPacman", "Pong", "Qbert",
    "Seaquest", "SpaceInvaders",
})  # fmt: skip
"""Games that are known without ALE."""


def _old_robot(name: str) -> str | None:
    """Ids of mujoco_py, PyBullet and Roboschool."""
    entry = getattr(gymnasium.registry.get(name), "entry_point", None)
    if callable(entry) and (old := re.match(_MUJOCO_PY, name)):
        return (
            f"{name!r} needs mujoco_py, which is not maintained: take '{old['robot']}-v5' (rewards and observations differ a little) or "
            f"'{old['robot']}-v4'."
        )
    found = re.match(_SIMULATOR, name)
    if found is None or not (found["bullet"] or name.startswith("Roboschool")):
        return None
    bases = {
        bare(known).lower(): bare(known) for known in gymnasium.registry if known.endswith("-v5") and "/" not in known
    }
    robot = bases.get(found["robot"].lower())
    if robot is None:
        return f"{name!r} belongs to a simulator for old Gym. Gymnasium's robots are such as 'HalfCheetah-v5' and 'Ant-v5'."
    return (
        f"{name!r} belongs to a simulator for old Gym. Take '{robot}-v5', MuJoCo's: its returns are on another scale."
    )
