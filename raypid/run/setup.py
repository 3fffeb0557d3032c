"""Settings, spaces and network of a run, for roles that are put together by hand (`raypid.roles`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from raypid.algorithms.off_policy import OffPolicyConfig
from raypid.plugins.registry import ALGORITHMS
from raypid.roles.by_hand import Setup
from raypid.run.assembly import learner_threads, replay_spec, rollout_spec
from raypid.run.calls import algorithm_of, named_algorithm, request_of
from raypid.run.resolve import AlgorithmClass, resolve
from raypid.runtime.resources import limit_threads
from raypid.settings.config import ConfigError, canonical

_RAY = "your program starts or joins Ray, and .options(num_cpus=N) of an actor reserves CPUs"
_BY_HAND = {
    "num_workers": "make a Rollout(setup, worker_index) for each worker",
    "num_learners": "one Learner(setup) learns, here or as an actor",
    "num_replay_shards": "make each Replay(setup, shard, num_shards={value}) yourself",
    "parameter_server": "make a ParameterServer(setup), and call push and pull",
    **dict.fromkeys(
        ("evaluation_interval", "evaluation_parallel", "evaluation_num_episodes"),
        "make an Evaluator(setup), and call evaluate(weights, num_episodes) when you want",
    ),
    **dict.fromkeys(("address", "backend", "num_cpus", "num_cpus_per_worker", "wait_for_room_s", "fit"), _RAY),
    "gpu": "device, such as cuda:0, says where the Learner computes, and .options(num_gpus=1) of an actor reserves a GPU",
    "callbacks": "read the reports of Rollout.collect",
    "worker_timeout_s": "ray.get(future, timeout=SECONDS) says how long your loop waits",
    "exact_resume": "Learner.state_dict and Replay.save keep what your loop goes on from",
    **dict.fromkeys(
        ("on_divergence", "max_rollbacks"),
        "catch raypid.errors.Diverged, and go on from a state_dict that your loop has kept",
    ),
    "save_replay": "call Replay.save when you want",
    "steps_per_iteration": "your loop has no iterations but those that it makes",
    "max_staleness": "compare the version of what a Rollout collected with that of Learner.weights, and drop what is too old",
    "fragments_in_flight": "your loop decides how many calls of a Rollout it has under way",
}
"""Settings that no role looks at -> what to do in a loop of one's own."""


def _check_by_hand(name: str, algorithm: AlgorithmClass, given: Mapping[str, object]) -> None:
    """Refuse settings that have no effect on roles by hand.

    Raises:
        ConfigError: names each, and what the loop does in its place.
    """
    default = algorithm.Config()
    values = {canonical(key): value for key, value in given.items()}
    # workers share a range of epsilons, or a population, or whatever an algorithm of the user's own lets them share
    shares = values.get("worker_epsilon", getattr(default, "worker_epsilon", None)) is not None
    shares = shares or algorithm.collect == "fitness" or not ALGORITHMS.is_own(name)
    told = [
        f"{key} belongs to an agent: by hand, {here.format(value=value)}. Leave it out."
        for key, here in _BY_HAND.items()
        if ((value := values.get(key)) or (value == 0 and key == "max_staleness"))
        and value != getattr(default, key, value)
        and not (shares and key == "num_workers")
    ]
    if told:
        raise ConfigError(" ".join(told))


def setup(
    run: object = None,
    env: object = None,
    config: Mapping[str, object] | None = None,
    *,
    tuned: bool | str = False,
    **settings: object,
) -> Setup:
    """Resolve settings as an agent does, and return what `raypid.roles.Rollout` and the other roles are made from.

    It makes the environment once, for its spaces, and starts nothing: where roles run, and how many, is up to the caller.

    Args:
        run: the algorithm: a name, or a class such as `raypid.SAC`. It may be given as `algorithm` too.
        env: the environment, as agents take it.
        config: settings; keywords override them.
        tuned: begin with raypid's tuned settings for the environment.

    Raises:
        ConfigError: as for an agent. R2D2, callbacks, and settings of what the caller's loop decides are refused.
        EnvError: as for an agent.
    """
    name = algorithm_of(named_algorithm("setup", run, env, settings))
    algorithm: AlgorithmClass = ALGORITHMS.get(name)
    request = request_of(name, [env], config, settings, tuned=tuned)
    _check_by_hand(name, algorithm, request.settings)
    resolved = resolve(replace(request, stop={}))
    limit_threads(1)  # as for an agent, whose numbers these are
    c, network = algorithm.portable(resolved.config), resolved.network
    replay = None
    if isinstance(c, OffPolicyConfig):
        if c.replays_sequences:
            raise ConfigError(
                f"{name} replays sequences, which raypid.roles.Replay does not draw; take DQN with frame_stack."
            )
        replay = replay_spec(c, network)
    spec = rollout_spec(algorithm, c, network)
    return Setup(
        algorithm=algorithm,
        config=c,
        spec=spec,
        evaluation=replace(spec, env=resolved.evaluation_env),
        replay=replay,
        num_threads=learner_threads(algorithm, c, network),
        initial=resolved.initial,
    )
