"""From settings to what the roles of a run are made from (`raypid.roles`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from raypid.algorithms.custom_model import CustomModelConfig
from raypid.algorithms.off_policy import OffPolicy, OffPolicyConfig
from raypid.nn.idle_settings import idle_settings
from raypid.nn.network_policy import NetworkPolicy
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.user_agent import AgentSource, agent_class
from raypid.ops.normalizer import DiscountedReturns
from raypid.plugins.registry import ALGORITHMS, NETWORKS, REPLAYS
from raypid.replay.buffer import ReplaySpec, row_shapes
from raypid.roles.acting import RolloutSpec
from raypid.roles.gradient_worker import GradientSource, differentiating
from raypid.roles.setup import Setup
from raypid.run.calls import algorithm_of, named_algorithm, request_of
from raypid.run.resolve import AlgorithmClass, ResolvedRun, env_spec_of, resolve
from raypid.runtime.resources import limit_threads, num_cores
from raypid.settings.config import Config, ConfigError, canonical

_RAY = "your program starts or joins Ray, and .options(num_cpus=N) of an actor reserves CPUs"
_EVALUATE = "make an Evaluator(setup), and call evaluate(weights, num_episodes) when you want"
_CATCH = "catch raypid.errors.Diverged, and go on from a state_dict that your loop has kept"
_BY_HAND = {
    "num_workers": "make a Rollout(setup, worker_index) for each worker",
    "num_learners": "one Learner(setup) learns, here or as an actor",
    "num_replay_shards": "make each Replay(setup, shard, num_shards={value}) yourself",
    "parameter_server": "make a ParameterServer(setup), and call push and pull",
    **dict.fromkeys(("evaluation_interval", "evaluation_parallel", "evaluation_num_episodes"), _EVALUATE),
    **dict.fromkeys(("address", "backend", "num_cpus", "num_cpus_per_worker", "wait_for_room_s", "fit"), _RAY),
    "gpu": "device, such as cuda:0, says where the Learner computes, and .options(num_gpus=1) of an actor reserves a GPU",
    "callbacks": "read the reports of Rollout.collect",
    "worker_timeout_s": "ray.get(future, timeout=SECONDS) says how long your loop waits",
    "exact_resume": "Learner.state_dict and Replay.save keep what your loop goes on from",
    **dict.fromkeys(("on_divergence", "max_rollbacks"), _CATCH),
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
    if isinstance(resolved.config, OffPolicyConfig) and resolved.config.replays_sequences:
        raise ConfigError(f"{name} replays sequences, which roles.Replay does not draw; take DQN with frame_stack.")
    return setup_of(resolved)


def setup_of(run: ResolvedRun) -> Setup:
    """What the roles of a run are made from, by hand and in raypid's own loops."""
    algorithm, network = run.algorithm, run.network
    c: Config = algorithm.portable(run.config)
    spec = _rollout_spec(algorithm, c, network)
    replay, buffer = None, None
    if isinstance(c, OffPolicyConfig):
        assert issubclass(algorithm, OffPolicy)
        replay, buffer = _replay_spec(c, network), REPLAYS.get(algorithm.replay_kind(c))
    source: Callable[[NetworkPolicy], GradientSource] | None = None
    if isinstance(c, CustomModelConfig):  # the user's agent and model compute the gradients
        source = partial(AgentSource, agent_class(c.agent), c.agent_config)
    elif algorithm.collect == "gradients":  # the algorithm computes them, in the worker
        source = partial(differentiating, algorithm, c, spec)
    return Setup(
        algorithm=algorithm,
        config=c,
        spec=spec,
        evaluation=replace(spec, env=run.evaluation_env),
        collect=algorithm.collect,
        source=source,
        program=run.request.program,
        replay=replay,
        buffer=buffer,
        num_threads=learner_threads(algorithm, c, network),
        initial=run.initial,
    )


def _rollout_spec(algorithm: AlgorithmClass, config: Config, network: NetworkSpec) -> RolloutSpec:
    """What the workers are made from, without callbacks."""
    idle = {**config.idle(), **idle_settings(config, network)}
    returns = None
    if isinstance(config, OffPolicyConfig) and config.normalize_rewards:  # the learners of other algorithms see to that
        returns = DiscountedReturns(config.gamma, config.reward_scale, config.reward_clip)
    return RolloutSpec(
        env=replace(env_spec_of(config), staggers=algorithm.staggers),
        network=network,
        fragment_length=config.fragment_length,
        seed=config.seed or 0,
        observation_noise=config.observation_noise,
        action_noise=config.action_noise,
        noise_persistence=1.0 if "noise_persistence" in idle else config.noise_persistence,
        max_crashes=config.max_restarts,
        record_memory=algorithm.flow == "replay" and bool(network.memory),
        returns=returns,
        networks={} if NETWORKS.is_own(network.network) else {network.network: NETWORKS.get(network.network)},
    )


def _replay_spec(c: OffPolicyConfig, network: NetworkSpec) -> ReplaySpec:
    """What a buffer of all data is made from."""
    return ReplaySpec(
        capacity=c.buffer_size,
        n_step=c.n_step,
        gamma=c.gamma,
        frame_stack=c.frame_stack,
        reward_scale=c.reward_scale,
        reward_clip=c.reward_clip,
        priority_exponent=c.priority_exponent if c.prioritized else 0.0,
        seed=c.seed or 0,
        columns=row_shapes(network),
    )


def learner_threads(algorithm: AlgorithmClass, c: Config, network: NetworkSpec) -> int:
    """Threads of the learner."""
    width = max(network.hidden, default=0)
    most = num_cores() if network.images or width >= 256 else 1  # narrow layers are slower on several threads
    if c.num_learners or algorithm.collect == "fitness":
        most = 1  # a population learns without torch, and acts faster on one
    return c.num_threads or most
