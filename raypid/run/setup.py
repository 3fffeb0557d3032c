"""Settings, spaces and network of a run, for roles that are put together by hand (`raypid.roles`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from raypid.algorithms.off_policy import OffPolicyConfig
from raypid.config import ConfigError
from raypid.registry import ALGORITHMS
from raypid.roles.by_hand import Setup
from raypid.run.assembly import (
    AlgorithmClass,
    examine,
    learner_threads,
    replay_spec,
    resolve_settings,
    rollout_spec,
    with_tuned,
)
from raypid.run.training import algorithm_of, settings_of
from raypid.runtime.resources import limit_threads


def setup(
    run: object,
    env: object = None,
    config: Mapping[str, object] | None = None,
    *,
    tuned: bool | str = False,
    **settings: object,
) -> Setup:
    """Resolve settings as an agent does, and return what `raypid.roles.Rollout` and the other roles are made from.

    It makes the environment once, for its spaces, and starts nothing: where roles run, and how many, is up to the caller.

    Args:
        run: the algorithm: a name, or a class such as `raypid.SAC`.
        env: the environment, as agents take it.
        config: settings; keywords override them.
        tuned: begin with raypid's tuned settings for the environment.

    Raises:
        ConfigError, EnvError: as for an agent. R2D2 and callbacks are refused.
    """
    name = algorithm_of(run)
    chosen = settings_of(() if env is None else (env,), config, settings)
    resolved = resolve_settings(name, chosen, with_tuned(name, tuned, {}, chosen) if tuned else None)
    algorithm: AlgorithmClass = ALGORITHMS.get(name)
    found = examine(name, resolved.config, given=chosen)
    if found.callbacks is not None:
        raise ConfigError(
            "callbacks belong to an agent's run; in a loop of your own, read the reports of Rollout.collect."
        )
    resolved.settle(found.adapted)
    limit_threads(1)  # as for an agent, whose numbers these are
    settled, _ = algorithm.settled(resolved.config, found.network)
    replay = None
    if isinstance(settled, OffPolicyConfig):
        if settled.replays_sequences:
            raise ConfigError(
                f"{name} replays sequences, which raypid.roles.Replay does not draw; take DQN with frame_stack."
            )
        replay = replay_spec(settled, found.network)
    spec = rollout_spec(algorithm, settled, found.network)
    return Setup(
        algorithm=algorithm,
        config=settled,
        spec=spec,
        evaluation=replace(spec, env=found.evaluation_env),
        replay=replay,
        num_threads=learner_threads(algorithm, settled, found.network),
        initial=found.initial,
    )
