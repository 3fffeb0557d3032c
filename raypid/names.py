"""What other libraries call what is here: sentences for names that people bring. docs/names.md shows them all, with what works as it is.

Settings that mean the same in unit and effect are accepted (`raypid.config.ALIASES`); one that only has another name is in
`raypid.config.ELSEWHERE`. Here is what needs a sentence.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from raypid.errors import UserError, shown

_BESIDE_CONFIG = "It belongs to an experiment, beside run and config: a file of `raypid train -f FILE`, or raypid.tune.run_experiments."
_REPLAY = "Only algorithms that learn from replay have it: DQN, Rainbow, ApeX, R2D2, SQN, SAC, TD3, DDPG."
_EPSILON = "epsilon falls from epsilon_start to epsilon_end over epsilon_steps environment steps, of DQN and its kin."
_TARGET = (
    "target_interval counts updates between moves of the target network; target_tau is how far each goes (1 copies it)."
)
_RATIO = "a_l_ratio is environment steps for each update, of algorithms that learn from replay."
_VALUE = "value_coef weighs half the squared error, as CleanRL's vf_coef does; Stable-Baselines3's and RLlib's weigh all of it: set twice theirs."
_ITERATION_ROWS = (
    "An iteration learns from fragment_length rows of each environment of each worker: set fragment_length to the rows divided by the "
    "environments. With replay it is batch_size, the rows of one gradient step."
)
_OWN_CHOICE = "NumPy or PyTorch learns, as kernel says: leave it out."
_LR = "lr is the learning rate of the policy and of SAC's temperature; lr_critic is that of the critics, which take lr where it is not given."
_LEFT_TO_ENV = "The environment's own spaces count: leave it out."
_ALWAYS_REPLACED = "Lost workers are always replaced, max_restarts of them within an hour, and environments that raise are made anew: leave it out."
_RESERVED = "The driver and the learners reserve no CPU; num_cpus_per_worker is what each worker reserves, and --explain shows what goes where."
_BUFFER = "buffer_size is the capacity; prioritized true draws by priority_exponent and importance_exponent."
_PASSES = "num_epochs is how often a batch is gone over; target_network of APPO keeps a copy to measure by."
_HOOK = "callbacks takes a class of raypid.Callbacks: on_start, on_iteration, on_episode_end, on_checkpoint and on_end."
_ORTHO = "Layers begin orthogonal and images are scaled by their bound: leave it out."
_NOT_SEARCHED = "`raypid tune` halves the number of trials again and again; --trials and --budget bound it."
BUILT = 'Settings are keywords, without a builder: raypid.PPO("CartPole-v1", num_workers=2, lr=0.001).'
_ONE_AGENT = "One agent acts in each environment, by one policy: leave it out."
_NOT_RECORDED = "Learning is from an environment, not from recorded rows, and rows are not recorded: leave it out."
_CONNECTOR = "A Gymnasium wrapper does what a connector does: wrap in a function that makes the environment."
_ONE_COMPILER = "th_compile compiles the losses with torch.compile; nothing else is compiled."
_LAYERS = "Layers begin orthogonal, and their activation is model.activation: leave it out."
_QUEUES = "fragments_in_flight of IMPALA, APPO and A3C bounds what is under way: leave it out."
_SPEC = "A network of your own is named by model.network, its arguments by model.custom."
_RELABELLING = "Goals are not relabelled here; SAC and TD3 learn on Dict observations with goals."
_SIZED_BY_SPACES = "Networks are sized by the environment's spaces: leave it out."
_FILMED = "`raypid eval RUN --video FILE` films an episode of a trained policy."

SETTINGS: dict[str, str] = {
    # a learner, a parameter server and their launcher
    "is_restore": "Set init_from (or weights_file) to the folder whose weights training starts from; --resume DIR, in Python restore(DIR), "
    "goes on with a whole run.",
    "recover": "--resume DIR goes on from the last checkpoint of a run, with weights and replay buffer; in Python "
    "raypid.Agent.from_checkpoint(DIR).",
    "object_store_memory": "Ray sizes its object store itself, and raypid checks that it is enough. For another size run `ray start --head "
    "--object-store-memory BYTES`, and join it with address auto.",
    "redis_max_memory": "Ray has no Redis any more, so nothing is to be limited: leave it out.",
    "total_epochs": "A run ends at its stop criteria: --stop '{\"timesteps_total\": N}', in Python fit(stop=N).",
    **dict.fromkeys(("obs_dim", "act_dim"), _SIZED_BY_SPACES),
    **dict.fromkeys(("a_l_ratio", "start_steps", "buffer_size", "target_tau", "n_step", "samples_per_insert"), _REPLAY),
    # an agent of actors, learners and storages
    **dict.fromkeys(("hidden_dim", "num_layers"), "Set model.hidden to the widths of all layers, such as [256, 256]."),
    "num_storages": "raypid.DistributedAgent has it; with the others nothing waits in storages.",
    "tag": "A run's folder is named by --out DIR, in Python out=DIR.",
    # RLlib and Tune
    "num_epochs": "Only PPO, APPO and IMPALA go over a batch several times.",
    "upload_dir": "Runs are written to a folder, --out DIR (in Python out=DIR): take one on a disk that all share, or copy it yourself.",
    "local_dir": "--out DIR (in Python out=DIR) is the run's own folder, not the one above it; an experiment (`raypid train -f FILE`) may "
    "have local_dir.",
    "checkpoint_freq": "--checkpoint-interval N counts training iterations too; without it there is a checkpoint a minute. In Python: save(). "
    "An experiment (`raypid train -f FILE`) may have it by either name.",
    "max_failures": "A trial that fails is not tried again by itself, and the others go on: `raypid train --resume DIR` tries it again. A worker "
    "that is lost is replaced at once (max_restarts).",
    "resources": f"CPUs and GPUs of a run are settings: num_cpus, num_cpus_per_worker, num_gpus. {_BESIDE_CONFIG}",
    "driver_cpu_limit": "The driver reserves no CPU. It is accepted in an experiment's resources, beside cpu and gpu.",
    **dict.fromkeys(("num_samples", "repeat"), _BESIDE_CONFIG),
    "scheduler": "Trials that learn from each other are a population: population beside run and config in a file of `raypid train -f FILE`. "
    "`raypid tune` stops hopeless trials early. The learning rate's schedule is lr_schedule.",
    "search_alg": "`raypid tune` searches settings, by Optuna where it is installed: raypid tune --run PPO --env CartPole-v1 --budget 10m.",
    "run": f"The algorithm is no setting: --run NAME, in Python raypid.NAME(...). {_BESIDE_CONFIG}",
    "stop": f"When to end is no setting: --stop JSON, in Python fit(stop=N). {_BESIDE_CONFIG}",
    "config": "Settings stand by themselves, not within a config: {\"lr\": 0.001, \"num_workers\": 2}. An experiment has a config: "
    "`raypid train -f FILE`.",
    "registry": "It is an argument of raypid.PPO and its kin alone; names that this process has registered are found without it.",
    "use_lstm": "Set model.memory to lstm: a memory behind any network (model.network lstm is an mlp with it).",
    "lstm_cell_size": "Set model.memory_size.",
    "max_seq_len": "A memory is unrolled over a whole fragment: set fragment_length.",
    **dict.fromkeys(("train_batch_size", "train_batch_size_per_learner"), _ITERATION_ROWS),
    **dict.fromkeys(("vf_loss_coeff", "vf_coef"), _VALUE),
    **dict.fromkeys(("kl_coeff", "kl_target", "use_kl_loss"), "PPO clips its steps (clip), without a penalty; target_kl ends the epochs of a batch."),
    "vf_clip_param": "It bounds the squared error; value_clip bounds how far the value moves.",
    "framework": _OWN_CHOICE,
    "observation_filter": "MeanStdFilter is normalize_observations true.",
    "evaluation_config": "evaluation_env is another environment to evaluate on; evaluations act without noise and with frozen statistics.",
    "evaluation_duration": "evaluation_num_episodes counts the episodes of one evaluation.",
    "num_gpus_per_worker": "Workers act on CPUs; num_gpus are the learner's.",
    "num_gpus_per_learner": "num_gpus is of all learners together: a multiple of num_learners.",
    "local_mode": "Without workers everything runs in this process; with them, set backend to local.",
    **dict.fromkeys(("use_gae", "use_critic"), "gae_lambda 1 gives plain returns: leave it out."),
    "batch_mode": "A fragment ends after fragment_length rows, and episodes go on in the next one: leave it out.",
    # RLlib, by its newer names
    **dict.fromkeys(("actor_lr", "policy_lr", "alpha_lr", "pi_lr"), _LR),
    **dict.fromkeys(("observation_space", "action_space"), _LEFT_TO_ENV),
    **dict.fromkeys(("normalize_actions", "clip_actions"), "Actions are scaled from [-1, 1] to the bounds and clipped there: leave it out."),
    "action_mask_key": "A Dict observation has its mask under action_mask: leave it out.",
    "disable_env_checking": "`raypid check-env` looks closer; a run checks only what it needs: leave it out.",
    **dict.fromkeys(("num_gpus_per_env_runner", "custom_resources_per_env_runner"), "Workers act on CPUs; num_gpus are the learner's."),
    "explore": "act and eval are greedy; act(obs, explore=True) and `raypid eval --explore` sample.",
    "exploration_config": "epsilon_start, epsilon_end and epsilon_steps are settings of DQN and its kin, exploration_noise of TD3 and DDPG.",
    **dict.fromkeys(("epsilon", "exploration_fraction", "epsilon_start", "epsilon_end"), _EPSILON),
    "max_requests_in_flight_per_env_runner": "fragments_in_flight of IMPALA, APPO and A3C also counts calls that are done and wait for the learner.",
    **dict.fromkeys(("compress_observations", "preprocessor_pref"), "Observations travel in the dtype that they have: leave it out."),
    **dict.fromkeys(("num_cpus_per_learner", "num_cpus_for_main_process", "placement_strategy", "custom_resources_per_learner"), _RESERVED),
    "num_aggregator_actors_per_learner": "Learners take the workers' data as they are: leave it out.",
    **dict.fromkeys((
        "restart_failed_env_runners", "ignore_env_runner_failures", "restart_failed_sub_environments",
        "env_runner_health_probe_timeout_s", "env_runner_restore_timeout_s", "recreate_failed_env_runners", "delay_between_env_runner_restarts_s",
    ), _ALWAYS_REPLACED),
    "shuffle_batch_per_epoch": "Rows are drawn in a new order for each pass: leave it out.",
    **dict.fromkeys(("vtrace_clip_rho_threshold", "vtrace_clip_pg_rho_threshold"), "rho_clip and c_clip bound the weights of V-trace, of IMPALA "
    "and APPO."),
    "broadcast_interval": "A worker gets the newest weights with each call; max_staleness of IMPALA, APPO and A3C drops what is older.",
    **dict.fromkeys(("circular_buffer_num_batches", "circular_buffer_iterations_per_batch"), _PASSES),
    "sigma0": "noisy is sigma_0 itself: noisy 0.5, and 0 for none.",
    "td_error_loss_fn": "huber is where the loss turns from square to linear; 0 is the squared error.",
    "num_steps_sampled_before_learning_starts": "start_steps are steps with random actions, after which learning starts.",
    **dict.fromkeys(("replay_buffer_config", "replay_buffer_class", "replay_buffer_kwargs"), _BUFFER),
    "training_intensity": "samples_per_insert is the same ratio, rows learnt for each step, of algorithms that learn from replay.",
    "store_buffer_in_checkpoints": "save_replay, on by default, writes the buffer with each checkpoint, of algorithms that learn from replay.",
    "twin_q": "num_critics 2 of SAC, TD3 and DDPG is twin_q true, and 1 is false.",
    **dict.fromkeys(("head_fcnet_hiddens", "fcnet_use_layernorm"), "critic_norm of SAC, TD3 and DDPG and layer_norm of DQN normalise layers; "
    "model.hidden has all widths."),
    "conv_filters": "model.channels are the channels of the convolutions; kernels and strides are chosen here. raypid.register_network takes a "
    "network with others.",
    "free_log_std": "The deviation of a Gaussian is a parameter of its own, which model.log_std_init starts: leave it out.",
    "model_config": "model takes a mapping of the network's settings, such as {\"hidden\": [64, 64]}.",
    "torch_compile_learner": "th_compile compiles the losses with torch.compile.",
    "evaluation_duration_unit": "evaluation_num_episodes counts episodes: leave it out.",
    "evaluation_num_env_runners": "evaluation_parallel evaluates in one process of its own while training goes on.",
    "custom_evaluation_function": "agent.eval(N) plays episodes; raypid.roles.Evaluator is there for a loop of your own.",
    **dict.fromkeys((
        "on_algorithm_init", "on_train_result", "on_checkpoint_loaded", "on_episode_created", "on_episode_start", "on_episode_step",
        "on_episode_end", "on_sample_end", "on_environment_created", "on_evaluate_start", "on_evaluate_end", "on_env_runners_recreated",
    ), _HOOK),
    **dict.fromkeys(("metrics_num_episodes_for_smoothing", "stats_window_size"), "episode_reward_mean is over the last 100 episodes: leave it out."),
    "min_time_s_per_iteration": "An iteration ends after fragment_length rows of each environment, or steps_per_iteration steps with replay.",
    "min_sample_timesteps_per_iteration": "An iteration ends after fragment_length rows of each environment, or steps_per_iteration steps with "
    "replay.",
    **dict.fromkeys(("log_level", "log_sys_usage"), "--quiet (in Python fit(quiet=True)) shows only what goes wrong."),
    "entropy_coeff_schedule": "entropy_coef is one number for the whole run.",
    **dict.fromkeys((
        "policies", "policy_mapping_fn", "policies_to_train", "count_steps_by", "observation_fn", "algorithm_config_overrides_per_module",
    ), _ONE_AGENT),
    **dict.fromkeys(("input_", "input_config", "input_read_method", "output_config", "off_policy_estimation_methods"), _NOT_RECORDED),
    **dict.fromkeys(("env_to_module_connector", "module_to_env_connector", "learner_connector"), _CONNECTOR),
    **dict.fromkeys((
        "torch_compile_worker", "torch_compile_learner_what_to_compile", "torch_compile_learner_dynamo_mode",
        "torch_compile_learner_dynamo_backend",
    ), _ONE_COMPILER),
    **dict.fromkeys((
        "fcnet_kernel_initializer", "fcnet_bias_initializer", "conv_kernel_initializer", "conv_bias_initializer", "conv_activation",
        "head_fcnet_activation", "head_fcnet_kernel_initializer", "head_fcnet_bias_initializer",
    ), _LAYERS),
    **dict.fromkeys(("learner_queue_size", "max_requests_in_flight_per_learner", "max_requests_in_flight_per_aggregator_actor"), _QUEUES),
    **dict.fromkeys(("rl_module_spec", "model_config_dict", "policy_model_config", "q_model_config"), _SPEC),
    "learner_class": "A loss of your own is a subclass of the algorithm, under @raypid.register_algorithm.",
    "grad_clip_by": "max_grad_norm bounds the norm of all gradients together: leave it out.",
    "use_worker_filter_stats": "Moments are merged over all workers: leave it out.",
    "env_task_fn": "A curriculum is the environment's affair: worker_index and stream_index tell its copies apart.",
    "render_env": _FILMED,
    # Stable-Baselines3, RL-Zoo, CleanRL and Spinning Up
    **dict.fromkeys(("goal_selection_strategy", "n_sampled_goal", "copy_info_dict"), _RELABELLING),
    **dict.fromkeys(("noise_type", "noise_std"), "exploration_noise of TD3 and DDPG is the deviation, where 1 is half the range of an action."),
    **dict.fromkeys(("squash_output", "full_std", "use_expln", "clip_mean"), "model.distribution is gaussian or squashed_gaussian; SAC squashes."),
    "features_dim": "model.hidden has the widths of all layers; a network of your own may have any.",
    "handle_timeout_termination": "Episodes that run out of time always bootstrap: leave it out.",
    "_init_setup_model": "The network is always built: leave it out.",
    "use_rms_prop": "optimizer rmsprop is a setting of actor-critics, with rmsprop_eps and rmsprop_decay; A2C takes Adam by default.",
    **dict.fromkeys(("sde_sample_freq", "use_sde_at_warmup"), "noise_persistence is how many steps exploration noise lasts, 16 by default."),
    "optimize_memory_usage": "Each observation is stored once in any case: leave it out.",
    **dict.fromkeys(("rollout_buffer_class", "rollout_buffer_kwargs"), "An iteration's rows are arrays [T, B], raypid.types.Trajectory: leave it "
    "out."),
    **dict.fromkeys(("ortho_init", "normalize_images"), _ORTHO),
    **dict.fromkeys(("optimizer_class", "optimizer_kwargs"), "optimizer (adam or rmsprop) is a setting of actor-critics; algorithms that learn "
    "from replay take Adam. adam_eps is its epsilon."),
    "n_eval_envs": "Evaluations play evaluation_num_episodes episodes in up to 10 environments at a time; evaluation_num_envs sets another limit.",
    "num_iterations": "A run ends at its stop criteria: --stop '{\"training_iteration\": N}', in Python fit(stop={\"training_iteration\": N}).",
    "autotune": "alpha none, the default, learns the temperature; a number fixes it.",
    "act_noise": "exploration_noise is the deviation where 1 is half the range of an action: divide act_noise by that. action_noise is noise in "
    "the environment.",
    "policy": "The network fits what is observed (model.network): leave MlpPolicy, CnnPolicy and MultiInputPolicy out.",
    "policy_kwargs": "net_arch is model.hidden, a list of widths; activation_fn is model.activation; ortho_init and the optimizer are chosen here.",
    "log_interval": "Every training iteration is reported: leave it out.",
    **dict.fromkeys(("gradient_steps", "train_freq", "train_frequency", "update_every"), _RATIO),
    "update_after": "start_steps are steps with random actions, after which learning starts.",
    "entropy_coef": "alpha is the temperature of SAC and SQN; leave it out and it is learnt. PPO, A2C and their kin weigh a bonus by entropy_coef.",
    **dict.fromkeys(("target_update_interval", "target_network_frequency", "target_network_update_freq"), _TARGET),
    "steps_per_epoch": "Of PPO and its kin it is the rows of an iteration: set fragment_length to these divided by the environments. "
    "With replay it is steps_per_iteration.",
    "vf_lr": "One optimizer learns policy and value, at the rate lr; lr_critic of SAC, TD3 and DDPG is that of the critics.",
    **dict.fromkeys(("train_pi_iters", "train_v_iters"), "num_epochs is how often a batch is gone over, for policy and value alike; batch_size is "
    "the rows of one gradient step."),
    **dict.fromkeys(("ac_kwargs", "actor_critic"), "model takes a mapping of the network's settings: {\"hidden\": [64, 64], \"activation\": "
    "\"tanh\"}."),
    "env_fn": "env takes a function that makes an environment, its class, or its id.",
    "logger_kwargs": "A run's folder is named by --out DIR (in Python out=DIR).",
    "polyak": "target_tau is 1 - polyak.",
    "use_sde": "noise_persistence is how many steps exploration noise lasts, 16 by default.",
    "anneal_lr": "lr_schedule linear lets lr fall up to the run's stop at a number of steps, or over schedule_steps.",
    "num_minibatches": "batch_size is the rows of one gradient step: those of an iteration divided by the minibatches.",
    "nminibatches": "batch_size is the rows of one gradient step: those of an iteration divided by the minibatches.",
    "clip_vloss": "value_clip bounds how far the value moves, by a number such as 0.2; none (the default) does not.",
    "clip": "Only PPO and APPO clip the ratio of probabilities.",
    **dict.fromkeys(("gae_lambda", "normalize_advantages"), "Only PPO, A2C, A3C, APPO and IMPALA estimate advantages."),
    "value_coef": "Only PPO, A2C, A3C, APPO and IMPALA weigh a value loss.",
    "value_clip": "Only PPO and APPO bound how far the value moves.",
    "torch_deterministic": "A seed repeats a run on a CPU: leave it out.",
    "vec_env": "vectorizer says how a worker steps its environments; auto takes the fastest.",
    "n_timesteps": "A run ends at its stop criteria: stop N, on the command line --timesteps N.",
    "normalize": "normalize_observations and normalize_rewards are settings of their own.",
    "env_wrapper": "Wrap it in a function of your own that makes the environment: --env file.py:make.",
}  # fmt: skip
"""Settings and options of other libraries -> what to do here."""

_SEEN = "Progress is shown where the output is a terminal; --quiet (in Python fit(quiet=True)) leaves it out."
_TRACKERS = (
    "Results are written for TensorBoard (events.out.tfevents.*) and as JSON lines (result.json), which trackers read."
)
_CONFIG = "--config takes settings as JSON, '{\"lr\": 0.001}', or a YAML or JSON file of them."
_FOLDER = "--out DIR (in Python out=DIR) is the run's folder; it has TensorBoard's events, checkpoints and results."
_OF_A_RUN = "It belongs to a run: fit(stop=N, checkpoint_interval=4, quiet=True), and raypid.train takes it too."
OPTIONS: dict[str, str] = {
    **dict.fromkeys(("checkpoint_interval", "keep_checkpoints", "final_episodes", "overwrite", "quiet"), _OF_A_RUN),
    "verbose": "verbose 0 is --quiet, in Python fit(stop=N, quiet=True) and raypid.train(..., quiet=True); without it progress is shown where "
    "the output is a terminal.",
    **dict.fromkeys(("progress", "progress_bar"), _SEEN),
    **dict.fromkeys(("log_dir", "logdir", "log_folder", "save_dir", "save_path", "tensorboard_log"), _FOLDER),
    **dict.fromkeys(("render", "render_mode", "capture_video"), _FILMED),
    "no_render": "Nothing is rendered unless you ask for it: `raypid eval RUN --video FILE`.",
    **dict.fromkeys(("track", "wandb"), _TRACKERS),
    "eval_freq": "evaluation_interval counts training iterations.",
    "save_freq": "checkpoint_interval counts training iterations.",
    "load": "--resume DIR goes on with a whole run; init_from starts from its weights.",
    "optimize": "`raypid tune` searches settings: raypid tune --run PPO --env CartPole-v1 --budget 10m.",
    "max_steps": "--stop N ends a run after N environment steps; --time-limit N ends an episode after N steps.",
    "cuda": "--num-gpus 1 learns on a GPU; --device cuda says on which.",
    "experiment_name": "A file names its experiments, NAME: {run: ..., env: ..., config: ...}: `raypid train -f FILE`.",
    "queue_trials": "Trials wait by themselves until there is room for them: leave it out.",
    "save_model": "Checkpoints and the best policy are written by themselves, to the folder of --out: leave it out.",
    **dict.fromkeys(("hyperparams", "hyperparameters", "params", "conf_file"), _CONFIG),
    "checkpoint_at_end": "A run always ends with a checkpoint: leave it out.",
    "max_concurrent_trials": "`raypid tune --concurrent N` and max_concurrent of a file try N settings at a time.",
    "no_tune": "A run needs no Tune: leave it out.",
    "old_api_stack": "There is one interface: leave it out.",
    "as_test": "`raypid train` has no test mode; --stop ends a run at a return, and result.json has what it reached.",
    "num_agents": "One agent acts in each environment: leave it out.",
    "output": "Rows are not recorded; a checkpoint has the replay buffer (save_replay).",
    **dict.fromkeys(
        ("upload_model", "hf_entity"),
        "Nothing is uploaded: the folder of --out has the best policy and all checkpoints.",
    ),
    "gym_packages": "An environment may be named with its package: --env package:id.",
    "save_replay_buffer": "save_replay, on by default, writes the buffer with each checkpoint, of algorithms that learn from replay.",
    **dict.fromkeys(("uuid", "exp_name"), "A run's folder is named by --out DIR."),
    **dict.fromkeys(("n_trials", "max_total_trials"), "`raypid tune --trials N` tries N settings."),
    "sampler": "`raypid tune --by optuna` or --by random draws the settings.",
    **dict.fromkeys(
        ("study_name", "storage"),
        "`raypid tune --out DIR` keeps a search in a folder, without a database; --resume DIR goes on with it.",
    ),
    **dict.fromkeys(("pruner", "n_startup_trials", "n_evaluations"), _NOT_SEARCHED),
    **dict.fromkeys(
        ("load_best", "load_checkpoint", "load_last_checkpoint"),
        "`raypid eval DIR` takes the best policy, DIR/checkpoints the newest, DIR/checkpoints/checkpoint_000123 that one.",
    ),
    **dict.fromkeys(
        ("stochastic", "deterministic"),
        "`raypid eval DIR`, eval and act are greedy; --explore, in Python explore=True, samples.",
    ),
    "n_jobs": "`raypid tune --concurrent N` tries N settings at a time.",
    "n": "--timesteps N, or --stop N, ends a run after N environment steps.",
    "trained_agent": "--init-from DIR starts from the weights of a run; --resume DIR goes on with all of it.",
    "epochs": "--stop N ends a run after N environment steps; --num-epochs is how often PPO goes over a batch.",
    "frames": "--timesteps N counts what the policy has acted: with a frame skip of 4 that is a quarter of the frames.",
}
"""Options alone, by their names without dashes -> what to do here. "wandb" stands for all that begin so."""

KEYWORDS: dict[str, str] = {
    "total_timesteps": "fit(total_timesteps=N) is a run of N steps in all; train(num_train_steps=N) trains N more.",
    "callback": "Callbacks are a setting of the agent: raypid.PPO(\"CartPole-v1\", callbacks=Mine), Mine a class of raypid.Callbacks. "
    "Evaluations and checkpoints need none.",
    **dict.fromkeys(("state", "episode_start"), "A memory is kept from call to call; policy.reset() begins an episode."),
    "action_masks": SETTINGS["action_mask_key"],
    "tb_log_name": "out=DIR names the run's folder, which has TensorBoard's events.",
    "reset_num_timesteps": "fit(N) counts from the beginning of the run; fit(agent.timesteps + N) trains N steps more.",
    **dict.fromkeys(("include", "exclude"), "A checkpoint always has all of it: leave it out."),
    "return_episode_rewards": "raypid.roles.Evaluator has each return: evaluate(...).rewards.",
}  # fmt: skip
"""Arguments of other libraries' methods that are neither settings nor options -> what to do here."""

_FALLS = 'PPO and other actor-critics take {0}="linear": it falls from {1} by the end of fit(stop=N), or over schedule_steps.'
NEEDS = {"lr": "lr_schedule"}
"""Settings of which VALUES has a sentence only for algorithms with another setting, that one."""
VALUES: dict[str, str] = {
    "lr": _FALLS.format("lr_schedule", "lr"),
    "clip": _FALLS.format("clip_schedule", "clip"),
    **dict.fromkeys(("entropy_coef", "gamma", "target_tau"), "It is one number for the whole run."),
    "fragment_length": "RLlib's \"auto\" is the batch divided by all environments: give that number.",
    "alpha": 'None, the default, learns it; "auto_0.1" is alpha_init=0.1.',
    "target_entropy": "None, the default, is what \"auto\" means.",
    "action_noise": "It is noise in the environment. Noise of exploration is exploration_noise, of TD3 and DDPG: a number, where 1 is half the "
    "range.",
    "exploration_noise": "It is the deviation alone, where 1 is half the range of an action.",
    "hidden": "Policy and value have the same widths, such as [64, 64].",
}  # fmt: skip
"""Settings that other libraries give values of another kind as well -> what to write here."""

NOT_EXPLORATION = (
    "action_noise is noise in the environment here; noise of exploration is exploration_noise, of TD3 and DDPG"
)
"""The remark on the setting beside algorithms for which others mean exploration by it."""

_NOT_HERE = "It is not here; "
ALGORITHMS: dict[str, str] = {
    **dict.fromkeys(("ddqn", "doubledqn"), "DQN is double DQN (double is true)."),
    "simpleq": "DQN has it, with double, dueling and prioritized false.",
    "c51": "DQN with num_atoms 51 is C51; Rainbow has it too.",
    **dict.fromkeys(("qrdqn", "iqn"), f"{_NOT_HERE}Rainbow and DQN with num_atoms 51 learn distributions of returns."),
    "trpo": f"{_NOT_HERE}PPO came after it and does the same with less work (target_kl bounds its steps).",
    **dict.fromkeys(("ppo2", "sb3ppo"), "It is PPO."),
    "ppg": f"{_NOT_HERE}PPO is next to it.",
    **dict.fromkeys(("recurrentppo", "ppolstm"), "PPO with --model.memory lstm."),
    "maskableppo": "It is PPO: a Dict observation with an action_mask rules choices out.",
    "pg": "A2C is next to it (gae_lambda 1).",
    "reinforce": "A2C is next to it.",
    "acktr": f"{_NOT_HERE}PPO and A2C are next to it.",
    "acer": f"{_NOT_HERE}IMPALA corrects for old data too.",
    **dict.fromkeys(("tqc", "crossq"), f"{_NOT_HERE}SAC is next to it."),
    **dict.fromkeys(("redq", "droq"), f"{_NOT_HERE}SAC with a low a_l_ratio (more updates for each step) is next to it."),
    "d4pg": f"{_NOT_HERE}TD3 and DDPG are next to it.",
    "her": f"{_NOT_HERE}SAC and TD3 learn on Dict observations with goals, without relabelling.",
    **dict.fromkeys(("dreamer", "dreamerv3"), f"{_NOT_HERE}there are no world models; PPO, SAC and Rainbow learn from images."),
    **dict.fromkeys(("muzero", "alphazero"), f"{_NOT_HERE}there are no world models; Rainbow and R2D2 learn discrete actions."),
    "bc": f"{_NOT_HERE}every algorithm learns from an environment; init_from starts from the weights of a policy.",
    **dict.fromkeys(("cql", "iql"), f"{_NOT_HERE}every algorithm learns from an environment; SAC is next to it."),
    "marwil": f"{_NOT_HERE}every algorithm learns from an environment.",
    "apexdqn": "It is ApeX.",
    "apexddpg": f"{_NOT_HERE}ApeX is DQN with many workers; DDPG and TD3 take workers too.",
}  # fmt: skip
"""Algorithms by their names elsewhere, without case and signs -> what to do here."""

COMMANDS = {
    "learn": "train", "fit": "train", "run": "train", "evaluate": "eval", "enjoy": "eval", "rollout": "eval", "play": "eval",
    "test": "eval", "optimize": "tune", "search": "tune", "sweep": "tune", "new": "init", "diagnose": "doctor", "ls": "list",
    **dict.fromkeys(("resume", "continue", "restore"), "train --resume"),
    **dict.fromkeys(("check", "validate"), "check-env"), **dict.fromkeys(("record", "video", "render"), "eval --video FILE"),
}  # fmt: skip
"""What other libraries call the commands -> ours. They are accepted where they mean just that (`SAME_COMMANDS`)."""
SAME_COMMANDS = {"learn": "train", "fit": "train", "evaluate": "eval"}

_EVALUATE = "An agent's eval(num_eval_episodes=20) plays whole episodes; so does `raypid eval RUN`."
_NETWORK = "A network is chosen by settings: model.network {}; raypid.ModelCatalog.get_model(...) makes one."
_OWN_NETWORK = "A network of your own is a torch.nn.Module, registered by raypid.register_network."
_OWN_LEARNER = "It is raypid.roles.Learner, made from raypid.setup(...)."
_ROLLOUT = "The rollout worker is raypid.roles.Rollout."
_ATARI = 'Atari games are prepared by themselves: raypid.PPO("ALE/Pong-v5", frame_stack=4, reward_clip=1).'
_BY_ITSELF = "It is done by itself: leave it out."
_CHECKED = "Observations that are not finite are refused: leave it out."
_CALLBACKS = 'A class of raypid.Callbacks is given as a setting: raypid.PPO("CartPole-v1", callbacks=Mine).'
_LOGGED = "fit logs everything to the run's folder; what callbacks add to a result is logged too."
_RESULTS = "raypid.reporting.logger.read_results(DIR) reads them; `raypid plot DIR` draws curves."
_SCHEDULE = VALUES["lr"]
_TRAINABLE = 'raypid.tune.trainable("PPO") makes one for Ray Tune.'
_SEED = 'seed is a setting of the agent: raypid.PPO("CartPole-v1", seed=1).'
_STARTED = "Nothing is started before: an agent with workers starts Ray, or joins the cluster at address, and close() ends what it started."
_NOISE = "exploration_noise of TD3 and DDPG is the deviation, where 1 is half the range of an action; noise_persistence lets it last."
_ENDS = 'An end is a stop criterion: fit(stop={"evaluation/episode_reward_mean": 475, "episodes_total": 500}).'
_OWN_VALUES = "Values and probabilities stay inside: act(obs) has the action; a loss of your own has self.network.evaluate(batch)."
ATTRIBUTES: dict[str, str] = {
    "ReplayBuffer": "It is raypid.roles.Replay, made from raypid.setup(...).",
    "ParameterServer": "It is raypid.roles.ParameterServer; the setting parameter_server puts one on each node.",
    **dict.fromkeys(("Learner", "LearnerGroup"), _OWN_LEARNER),
    "worker_train": "The learner is raypid.roles.Learner.",
    **dict.fromkeys(("worker_rollout", "RolloutWorker", "EnvRunner", "EnvRunnerGroup", "SingleAgentEnvRunner"), _ROLLOUT),
    "worker_test": "The evaluator is raypid.roles.Evaluator.",
    "HyperParameters": "Settings are a dict: raypid.SAC.DEFAULT_CONFIG has all of SAC's, raypid.SAC(config={...}) takes them.",
    **dict.fromkeys(
        ("make_vec_env", "make_env", "DummyVecEnv", "SubprocVecEnv"),
        "Environments are made by the agent, num_envs_per_worker of them: raypid.PPO(\"CartPole-v1\", num_envs_per_worker=8).",
    ),
    "VecNormalize": "normalize_observations and normalize_rewards are settings.",
    "VecFrameStack": "frame_stack is a setting.",
    **dict.fromkeys(("Monitor", "VecMonitor"), "Returns and lengths of episodes are recorded by themselves: leave it out."),
    "VecVideoRecorder": _FILMED,
    "VecCheckNan": _CHECKED,
    **dict.fromkeys(("VecTransposeImage", "sync_envs_normalization"), _BY_ITSELF),
    **dict.fromkeys(("AtariWrapper", "make_atari_env"), _ATARI),
    **dict.fromkeys(("evaluate", "evaluate_policy"), _EVALUATE),
    "load": "raypid.load_policy(DIR) loads a policy to act with; raypid.Agent.from_checkpoint(DIR) goes on with a whole run.",
    "VecEnv": "An environment of several is a gymnasium.vector.VectorEnv.",
    "DEFAULT_CONFIG": "Each algorithm has its own: raypid.PPO.DEFAULT_CONFIG, raypid.algorithms.ppo.DEFAULT_CONFIG.",
    "run_experiments": "It is raypid.tune.run_experiments; on the command line `raypid train -f FILE`.",
    "learn": 'raypid.train("PPO", "CartPole-v1", stop=100_000) is a whole run.',
    "fit": 'raypid.train("PPO", "CartPole-v1", stop=100_000) is a whole run; an agent has fit.',
    "eval": "agent.eval(20) plays episodes; on the command line `raypid eval DIR`.",
    "make": "An environment is named: raypid.PPO(\"CartPole-v1\"), or gymnasium.make(NAME).",
    "grid_search": "It is raypid.tune.grid_search; in a file {grid_search: [1, 4]}.",
    **dict.fromkeys(("Trainable", "Tuner", "TuneConfig"), _TRAINABLE),
    **dict.fromkeys((
        "Model", "ModelV2", "TorchModelV2", "RLModule", "TorchRLModule", "RLModuleSpec", "DefaultModelConfig", "BaseFeaturesExtractor",
        "FlattenExtractor", "NatureCNN", "CombinedExtractor", "MlpExtractor",
    ), _OWN_NETWORK),
    "FullyConnectedNetwork": _NETWORK.format("mlp"),
    "ConvolutionalNetwork": _NETWORK.format("cnn"),
    "LSTM": _NETWORK.format("lstm"),
    **{
        name: f"It is raypid.nn.distributions.{name}; raypid.ModelCatalog.get_action_dist(space) picks one."
        for name in ("ActionDistribution", "Categorical", "DiagGaussian", "Deterministic")
    },
    **dict.fromkeys((
        "MlpPolicy", "CnnPolicy", "MultiInputPolicy", "MlpLstmPolicy", "CnnLstmPolicy", "BasePolicy", "ActorCriticPolicy",
    ), SETTINGS["policy"]),
    "Policy": "raypid.load_policy(DIR) loads a policy to act with; agent.policy is that of an agent.",
    **dict.fromkeys(("Algorithm", "BaseAlgorithm", "OnPolicyAlgorithm", "OffPolicyAlgorithm"), "An agent of any algorithm is raypid.Agent, as in "
    "raypid.Agent.from_checkpoint(DIR). A new algorithm is a subclass of raypid.algorithms.base.Algorithm."),
    "AlgorithmConfig": BUILT,
    **dict.fromkeys(("init", "shutdown"), _STARTED),
    "EvalCallback": "Evaluations come by themselves, and best/ keeps the best policy: evaluation_interval and evaluation_num_episodes are settings.",
    "CheckpointCallback": "Checkpoints come by themselves, one a minute; fit(checkpoint_interval=10, keep_checkpoints=3) counts iterations.",
    **dict.fromkeys(("StopTrainingOnRewardThreshold", "StopTrainingOnMaxEpisodes", "StopTrainingOnNoModelImprovement"), _ENDS),
    **dict.fromkeys((
        "BaseCallback", "CallbackList", "EventCallback", "ConvertCallback", "EveryNTimesteps", "LogEveryNTimesteps", "DefaultCallbacks",
        "RLlibCallback",
    ), _CALLBACKS),
    "ProgressBarCallback": _SEEN,
    **dict.fromkeys(("HerReplayBuffer", "GoalSelectionStrategy"), _RELABELLING),
    **dict.fromkeys(("ActionNoise", "NormalActionNoise", "OrnsteinUhlenbeckActionNoise", "VectorizedActionNoise"), _NOISE),
    **dict.fromkeys(("DictReplayBuffer", "NStepReplayBuffer", "PrioritizedReplayBuffer", "EpisodeReplayBuffer"), _BUFFER),
    **dict.fromkeys(("RolloutBuffer", "DictRolloutBuffer", "SampleBatch", "SingleAgentEpisode"), SETTINGS["rollout_buffer_class"]),
    **dict.fromkeys(("configure", "Logger", "HumanOutputFormat", "TensorBoardOutputFormat", "CSVOutputFormat"), _LOGGED),
    **dict.fromkeys(("load_results", "ts2xy", "plot_results", "results_plotter"), _RESULTS),
    **dict.fromkeys(("get_linear_fn", "get_schedule_fn", "LinearSchedule", "ConstantSchedule"), _SCHEDULE),
    "set_random_seed": _SEED,
    **dict.fromkeys(("MultiAgentEnv", "PolicySpec"), "raypid trains one agent; docs/environments.md says what can be done with several."),
    "ConnectorV2": _CONNECTOR,
    "EnvContext": "env_config comes as keywords, or whole where the creator has one parameter: config[\"worker_index\"] is there too.",
}  # fmt: skip
"""Names of other libraries that are looked for in `raypid` -> where to find what they mean."""

STOPS: dict[str, str] = {
    **dict.fromkeys((
        "reward", "return", "mean_reward", "reward_mean", "episode_reward", "episode_return", "episode_return_mean", "ep_rew_mean",
        "rollout/ep_rew_mean", "env_runners/episode_return_mean", "env_runners/episode_reward_mean", "charts/episodic_return",
    ), "episode_reward_mean"),
    **dict.fromkeys((
        "evaluation_reward", "eval_reward", "eval/mean_reward", "evaluation/reward", "evaluation/env_runners/episode_return_mean",
        "evaluation/env_runners/episode_reward_mean", "evaluation/episode_return_mean",
    ), "evaluation/episode_reward_mean"),
    **dict.fromkeys((
        "timesteps", "steps", "env_steps", "total_timesteps", "num_timesteps", "total_steps", "time/total_timesteps", "global_step",
        "num_env_steps_sampled_lifetime", "env_runners/num_env_steps_sampled_lifetime", "num_env_steps_sampled",
    ), "timesteps_total"),
    **dict.fromkeys(("time", "seconds", "time_s", "total_time_s", "wall_time", "time_total", "time/time_elapsed"), "time_total_s"),
    **dict.fromkeys(("iterations", "iters", "training_iterations", "num_iterations", "time/iterations"), "training_iteration"),
    **dict.fromkeys((
        "episodes", "num_episodes", "total_episodes", "time/episodes", "num_episodes_lifetime", "env_runners/num_episodes_lifetime",
    ), "episodes_total"),
    **dict.fromkeys(("ep_len_mean", "rollout/ep_len_mean", "env_runners/episode_len_mean"), "episode_len_mean"),
}  # fmt: skip
"""Stop criteria by other names -> ours, which are the same number in the same unit."""

_UPDATES = "learner_updates_total counts gradient steps, training_iteration iterations."
STOPS_ANSWERED: dict[str, str] = {
    **dict.fromkeys(("eval", "evaluation"), "evaluation/episode_reward_mean is the mean return of evaluations."),
    "score": "episode_reward_mean is the mean return of training, evaluation/episode_reward_mean that of evaluations.",
    "frames": "timesteps_total counts what the policy has acted: with a frame skip of 4 that is a quarter of the frames.",
    **dict.fromkeys(("minutes", "hours"), "time_total_s is in seconds."),
    "epochs": "training_iteration counts iterations, timesteps_total environment steps.",
    **dict.fromkeys(("updates", "n_updates", "train/n_updates"), _UPDATES),
    **dict.fromkeys(("success_rate", "eval/success_rate"), "Callbacks report it: custom/success_rate."),
}
"""Stop criteria of others that mean something else -> what to write."""

_ACTION = "act(obs) returns the action by itself; explore=True samples it."
_RESTORE = "restore(DIR) goes on from a checkpoint; raypid.Agent.from_checkpoint(DIR) makes the agent too."
_SPACES = "observation_space and action_space are its spaces. The environments live in the workers; gymnasium.make(NAME) makes one to act in."
_ANEW = 'Make another agent, which may start from these weights: raypid.PPO("CartPole-v1", init_from=DIR).'
_REPLAYED = "A checkpoint has the replay buffer (save_replay): save(DIR) writes it, restore(DIR) reads it."
_INSIDE = "get_weights() returns all weights; the networks and optimizers themselves stay in the learner."
_STATE = "save(DIR) writes all of the state, restore(DIR) goes on from it."
_WORKERS = (
    "Workers and learners are not handed out; a loop of your own has raypid.roles.Rollout and raypid.roles.Learner."
)
_LAST = "rewards and lengths have the last 100 episodes; train() returns their means."
_METRICS = "train() returns the metrics of an iteration; fit writes those of all to result.json in its folder."
METHODS: dict[str, str] = {
    "learn": "fit(total_timesteps=N) trains until N steps in all, and leaves a folder; train() is one iteration.",
    **dict.fromkeys(("training_iteration", "training_step", "step"), "train() is one iteration."),
    "collect_rollouts": "train() collects and learns; raypid.roles.Rollout collects alone, in a loop of your own.",
    **dict.fromkeys((
        "predict", "compute_action", "compute_actions", "compute_single_action", "get_action", "forward_inference", "forward_exploration",
    ), _ACTION),
    **dict.fromkeys((
        "evaluate_actions", "predict_values", "get_distribution", "get_value", "get_action_and_value", "q_values",
    ), _OWN_VALUES),
    "evaluate": "eval(num_eval_episodes=20) plays whole episodes.",
    "load": ATTRIBUTES["load"],
    **dict.fromkeys(("load_checkpoint", "restore_from_path"), _RESTORE),
    **dict.fromkeys(("save_checkpoint", "save_to_path"), "save(DIR) writes a checkpoint."),
    **dict.fromkeys(("get_state", "set_state", "load_state_dict"), _STATE),
    **dict.fromkeys(("save_replay_buffer", "load_replay_buffer", "replay_buffer"), _REPLAYED),
    "rollout_buffer": SETTINGS["rollout_buffer_class"],
    "set_parameters": "set_weights(weights), with those of get_weights().",
    **dict.fromkeys(("get_parameters", "parameters", "state_dict"), "get_weights() returns the weights."),
    **dict.fromkeys(("export_model", "export_policy_model", "export_policy_checkpoint"), "save() writes a checkpoint with the policy; "
    "raypid.load_policy(DIR) loads it."),
    **dict.fromkeys(("get_policy", "get_module"), "policy is the current one, to act with; raypid.load_policy(DIR) loads one."),
    **dict.fromkeys(("add_policy", "remove_policy", "add_module", "remove_module"), _ONE_AGENT),
    **dict.fromkeys((
        "actor", "actor_target", "critic", "critic_target", "q_net", "q_net_target", "value_net", "mlp_extractor", "network_target", "optimizer",
    ), _INSIDE),
    **dict.fromkeys(("stop", "cleanup"), "close() ends workers and environments."),
    **dict.fromkeys(("env", "get_env"), _SPACES),
    **dict.fromkeys(("set_env", "reset_config"), _ANEW),
    "get_vec_normalize_env": "The policy has its normaliser, and save() writes it.",
    "set_training_mode": "act(obs) and eval() never change the normaliser: leave it out.",
    "set_random_seed": _SEED,
    **dict.fromkeys(("logger", "set_logger", "log_result"), _LOGGED),
    "logdir": "out is the run's folder, once fit has one; fit(out=DIR) names it.",
    **dict.fromkeys(("num_timesteps", "timesteps_total", "global_step"), "It is timesteps."),
    "episodes_total": "It is num_episodes.",
    **dict.fromkeys(("ep_info_buffer", "ep_success_buffer"), _LAST),
    **dict.fromkeys(("metrics", "get_metrics"), _METRICS),
    "exploration_rate": "It is learner/epsilon of what train() returns.",
    **dict.fromkeys((
        "workers", "env_runner", "env_runner_group", "eval_env_runner_group", "local_worker", "learner_group",
    ), _WORKERS),
    "get_config": "config has the settings; plain_config() returns them as JSON has them.",
    "get_default_config": "DEFAULT_CONFIG has all settings, as a new dict each time.",
    **dict.fromkeys(("resource_help", "default_resource_request"), "explain() says what runs where."),
    "reset": "policy.reset() begins new episodes, for a policy with a memory or a frame stack.",
    "render": _FILMED,
}  # fmt: skip
"""Methods and attributes of other libraries' agents and policies -> what to do here."""
BUILDER = frozenset((
    "environment", "env_runners", "rollouts", "training", "learners", "resources", "framework", "evaluation", "debugging", "reporting",
    "multi_agent", "rl_module", "api_stack", "experimental", "checkpointing", "fault_tolerance", "offline_data", "exploration", "build",
    "build_algo", "update_from_dict", "overrides", "copy",
))  # fmt: skip
"""Methods of RLlib's AlgorithmConfig."""


_PULL = "pull() returns the weights."
_COLLECT = "collect(weights, timesteps) acts and returns (report, data)."
_ADD = "add(worker_index, fragment) stores what a Rollout has collected."
_LEARNT = "update(timesteps, *data) makes an update; with replay it is learn(timesteps, *samples)."
_KEPT = "state_dict() returns all of its state, and load_state_dict(state) goes on from it; ParameterServer.save(DIR) writes the weights."
_PLAY = "evaluate(weights, num_episodes) plays whole episodes."
ROLES: dict[str, str] = {
    **dict.fromkeys(("ReplayBuffer", "Buffer", "ReplayMemory"), "Replay"),
    **dict.fromkeys(("Worker", "Actor", "RolloutWorker", "EnvRunner", "Sampler", "Collector"), "Rollout"),
    **dict.fromkeys(("Trainer", "LearnerGroup"), "Learner"),
    **dict.fromkeys(("Server", "PS"), "ParameterServer"),
    **dict.fromkeys(("Tester", "Evaluation"), "Evaluator"),
}
"""Roles by other names -> ours in `raypid.roles`."""
ROLE_METHODS: dict[str, dict[str, str]] = {
    "Rollout": dict.fromkeys(("sample", "rollout", "run", "step", "act"), _COLLECT),
    "Replay": dict.fromkeys(("store", "append", "push", "insert", "put", "extend"), _ADD),
    "Learner": {
        "get_weights": "weights() returns the newest weights.",
        **dict.fromkeys(("train", "step", "fit"), _LEARNT),
        **dict.fromkeys(("save", "restore", "load", "get_state", "set_state"), _KEPT),
    },
    "ParameterServer": {
        **dict.fromkeys(("get_weights", "weights", "get"), _PULL),
        **dict.fromkeys(("set_weights", "update", "put"), "push(weights) takes the weights."),
        "load": "restore(DIR) reads the weights of a policy folder, a checkpoint or a run.",
    },
    "Evaluator": dict.fromkeys(("eval", "evaluate_policy", "run", "test", "play"), _PLAY),
}  # fmt: skip
"""Methods of roles by other names -> what to call here."""


_OBS = ("observations", "observation", "states")
_NEXT = ("next_observations", "next_observation", "obs_next", "new_obs", "next_states", "next_state")
_ACTIONS, _REWARDS, _DONES = ("actions", "act"), ("rewards", "rew"), ("dones", "done")
_LOG_PROBS = ("log_probs", "logprobs", "logprob", "logp", "old_log_prob", "old_log_probs", "action_logp")
_VALUES = ("values", "old_values", "vf_preds")
_ADVANTAGES = ("advantages", "adv")
_TARGETS = ("returns", "value_targets", "ret")
_COMPUTED = "The learner computes it; a loop of your own has raypid.ops.returns.gae."
_DISCOUNTED = "discount is 0 where the episode terminated, and else gamma to the power of the steps that were folded."
_INPUTS = "inputs has the observations as the network takes them, normalised and stacked."
_COLUMNS = 'columns has it, by name: columns["log_prob"].'
_SUMMARY = 'summary() has it, by name: summary()["episode_reward_mean"].'
_FINAL = 'final has what the best policy reached at the end: final["episode_reward_mean"].'
_STEP_FIELDS: dict[str, str] = {
    **dict.fromkeys(_OBS, "It is obs."),
    **dict.fromkeys(_ACTIONS, "It is action."),
    **dict.fromkeys(_REWARDS, "It is reward."),
}
_BATCH_FIELDS: dict[str, str] = {
    **dict.fromkeys(("obs", *_OBS), _INPUTS),
    **dict.fromkeys(_ACTIONS, "It is action."),
}
_REPLAYED_FIELDS: dict[str, str] = {
    **_BATCH_FIELDS,
    **dict.fromkeys(_REWARDS, "It is reward."),
    **dict.fromkeys(("weights", "is_weights"), "It is weight."),
}
FIELDS: dict[str, dict[str, str]] = {
    "Rows": {
        **_STEP_FIELDS,
        **dict.fromkeys(("next_obs", *_NEXT), "obs has a row more than reward: obs[1:] are the next observations, and final has the true last "
        "ones of episodes whose environment reset within the step."),
        **dict.fromkeys(_DONES, "An episode ends in one of two ways: terminated | truncated."),
        **dict.fromkeys(("terminations", "terminateds"), "It is terminated."),
        **dict.fromkeys(("truncations", "truncateds", "timeouts"), "It is truncated."),
        **dict.fromkeys(("episode_starts", "is_first"), "It is first."),
        **dict.fromkeys(("mask", "masks"), "It is valid."),
    },
    "Trajectory": {
        **dict.fromkeys(("log_prob", *_LOG_PROBS), "It is behaviour[\"log_prob\"]."),
        **dict.fromkeys(("value", *_VALUES), "It is behaviour[\"value\"]."),
        **dict.fromkeys(("advantage", *_ADVANTAGES, *_TARGETS), _COMPUTED),
        **dict.fromkeys(("infos", "info"), "The worker keeps no infos: on_episode_end of raypid.Callbacks gets the last one of each episode."),
        **dict.fromkeys(("hidden", "hidden_state", "lstm_states", "state_in"), "It is state."),
        **dict.fromkeys(("num_steps", "steps"), "num_valid is the number of real steps, num_rows that of rows for each environment."),
    },
    "Transition": {
        **_STEP_FIELDS,
        **dict.fromkeys(_NEXT, "It is next_obs."),
        **dict.fromkeys((*_DONES, "terminated", "terminations", "terminateds"), _DISCOUNTED),
        **dict.fromkeys(("weight", "weights", "id", "indices", "probability"), "It is beside data: sample.weight, sample.id, sample.probability."),
    },
    "Sample": {
        **dict.fromkeys(("obs", *_OBS, "next_obs", *_NEXT, "action", *_ACTIONS, "reward", *_REWARDS, "discount", *_DONES),
        "data has the transitions: sample.data.obs, action, reward, discount and next_obs."),
        **dict.fromkeys(("indices", "idxs", "idx", "ids", "batch_indexes"), "It is id."),
        **dict.fromkeys(("is_weights", "importance_weights"), "It is weight."),
        "priorities": "Learner.learn returns new ones, for Replay.set_priorities.",
    },
    "Weights": {
        **dict.fromkeys(("state_dict", "parameters", "params", "arrays", "items", "keys"), "as_dict() returns the arrays by name."),
    },
    "Report": {
        **dict.fromkeys(("steps", "num_env_steps", "env_steps", "timesteps", "num_timesteps", "num_env_steps_sampled"), "It is num_steps."),
        **dict.fromkeys(("rewards", "ep_rewards", "episode_returns"), "It is episode_rewards, those of the episodes that ended."),
        **dict.fromkeys(("lengths", "episode_lens"), "It is episode_lengths, those of the episodes that ended."),
        **dict.fromkeys(("episode_reward_mean", "episode_return_mean", "mean_reward"), "It is the mean of episode_rewards, if there are any."),
        **dict.fromkeys(("num_episodes", "episodes"), "It is len(episode_rewards)."),
        **dict.fromkeys(("worker", "worker_id"), "It is worker_index."),
    },
    "Evaluation": {
        **dict.fromkeys(("episode_reward_mean", "episode_return_mean", "mean_reward", "mean", "std_reward", "std"), _SUMMARY),
        **dict.fromkeys(("returns", "episode_rewards", "episode_returns"), "It is rewards."),
        **dict.fromkeys(("episode_lengths", "episode_lens"), "It is lengths."),
    },
    "Outcome": {
        **dict.fromkeys(("episode_reward_mean", "episode_return_mean", "mean_reward"), _FINAL),
        **dict.fromkeys(("metrics", "results", "last_result"), "It is result."),
        **dict.fromkeys(("path", "out", "log_dir", "logdir"), "It is folder."),
        **dict.fromkeys(("policy", "model", "best_policy", "act", "predict"), "load_policy() returns the best policy, which acts."),
        "best_checkpoint": "checkpoint is the newest one; load_policy() returns the best policy.",
    },
    "Batch": {
        **_BATCH_FIELDS,
        **dict.fromkeys(_LOG_PROBS, "It is log_prob."),
        **dict.fromkeys(_VALUES, "It is value."),
        **dict.fromkeys(_ADVANTAGES, "It is advantage."),
        **dict.fromkeys(_TARGETS, "It is target."),
    },
    "Streams": {
        **_BATCH_FIELDS,
        **dict.fromkeys(("log_prob", *_LOG_PROBS, "value", *_VALUES, "advantage", *_ADVANTAGES, "target", *_TARGETS), _COLUMNS),
        **dict.fromkeys(("mask", "masks"), "It is valid."),
    },
    "TransitionBatch": {
        **_REPLAYED_FIELDS,
        **dict.fromkeys(("next_obs", *_NEXT), "It is next_inputs."),
        **dict.fromkeys(_DONES, _DISCOUNTED),
    },
    "SequenceBatch": {
        **_REPLAYED_FIELDS,
        **dict.fromkeys(_DONES, "It is ended."),
    },
}  # fmt: skip
"""Fields of data by other names, by the class of `raypid.types` and its like -> ours."""

_FLAT = "Results are flat: episode_reward_mean, episode_len_mean, timesteps_total and episodes_total are keys of it."
RESULTS: dict[str, str] = {
    **dict.fromkeys(("env_runners", "sampler_results", "rollout"), _FLAT),
    **dict.fromkeys(("learners", "learner", "info", "train", "losses"), "What the learner reports are keys learner/NAME: learner/policy_loss."),
    **dict.fromkeys(("timers", "perf"), "Seconds of each part are keys timing/NAME: timing/learner."),
    **dict.fromkeys(("evaluation", "eval"), "Evaluations are keys evaluation/NAME, of iterations that evaluated: evaluation/episode_reward_mean."),
    **dict.fromkeys(("hist_stats", "episodes_this_iter", "episode_rewards"), "rewards and lengths of the agent have the last 100 episodes."),
    "config": "config of the agent has the settings.",
    **dict.fromkeys(("num_env_steps_trained", "num_env_steps_trained_lifetime", "num_agent_steps_sampled_lifetime", "agent_timesteps_total",
    "num_agent_steps_sampled"), "It is timesteps_total."),
    "custom_metrics": "Metrics of callbacks are keys custom/NAME.",
    "fault_tolerance": "What was lost is counted by keys lost/NAME: lost/workers.",
    "done": "fit ends at its stop criteria; a loop of your own ends itself.",
}  # fmt: skip
"""Keys of other libraries' results -> where to look. Those that stop criteria know (`STOPS`) and metrics (`METRICS`) are answered too."""

METRICS: dict[str, str] = {
    **dict.fromkeys(("fps", "SPS"), "env_steps_per_s"),
    **dict.fromkeys(("episodic_length", "mean_ep_length"), "episode_len_mean"),
    "episodic_return": "episode_reward_mean",
    "episode_return_max": "episode_reward_max",
    "episode_return_min": "episode_reward_min",
    "std_reward": "episode_reward_std",
    **dict.fromkeys(("policy_gradient_loss", "actor_loss"), "policy_loss"),
    **dict.fromkeys(("vf_loss", "vf_loss_unclipped"), "value_loss"),
    "entropy_loss": "entropy",
    **dict.fromkeys(("approx_kl", "mean_kl_loss"), "kl"),
    "clipfrac": "clip_fraction",
    "vf_explained_var": "explained_variance",
    **dict.fromkeys(("learning_rate", "default_optimizer_learning_rate"), "lr"),
    "gradients_default_optimizer_global_norm": "grad_norm",
    **dict.fromkeys(("qf_loss", "qf1_loss", "qf2_loss"), "critic_loss"),
    "td_loss": "loss",
    **dict.fromkeys(("q_values", "qf1_values", "qf2_values", "qf_mean"), "q"),
    "td_error_mean": "td_error",
    **dict.fromkeys(("ent_coef", "alpha_value"), "alpha"),
    "exploration_rate": "epsilon",
    "num_env_steps_stored": "replay_rows",
    "n_updates": "learner_updates_total",
    "num_remote_worker_restarts": "workers",
    "diff_num_grad_updates_vs_sampler_policy": "staleness",
}  # fmt: skip
"""Last parts of the names of other libraries' metrics -> last parts of ours: train/approx_kl is learner/kl."""


class Named:
    """Base of classes of data: a field by another library's name, or a subscript, is answered with the field that is meant."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker would accept any name, and so hide typos

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_field(self, name)

        def __getitem__(self, key: object) -> NoReturn:
            raise no_mapping(self, key)

        __iter__ = None  # what can be subscripted would be iterated by whole numbers


def no_attribute(owner: object, name: str, told: str) -> AttributeError:
    """The error for an attribute that an object, or a class, lacks; `told` says what the name means here, "" nothing."""
    kind = f"type object {owner.__name__!r}" if isinstance(owner, type) else f"{type(owner).__name__!r} object"
    text = f"{kind} has no attribute {name!r}"
    return AttributeError(f"{text}. {told}" if told else text, name=name)  # named, so that Python adds no guess


def missing_field(owner: object, name: str, table: Mapping[str, Mapping[str, str]] = FIELDS) -> AttributeError:
    """The error for an attribute that an object of data, or a role by hand, lacks, with what the name means here, or with the nearest.

    Args:
        table: class -> other names -> what they mean.
    """
    cls = type(owner)
    is_odd = name.startswith("_") or name in dir(cls)
    return no_attribute(owner, name, "" if is_odd else _told(cls, name, table) or _near(name, cls))


def no_mapping(owner: object, key: object) -> TypeError:
    """The error for an object of data that is subscripted, as others' batches and results are."""
    cls, told = type(owner), "Its fields are attributes."
    if isinstance(key, str) and key in dir(cls):
        told = f"Its fields are attributes: .{key}."
    elif isinstance(key, str):
        told += f" {_told(cls, key) or _near(key, cls) or FIELDS.get(cls.__name__, {}).get('keys', '')}"
    return TypeError(f"{cls.__name__!r} object is not subscriptable. {told}".rstrip())


def _told(cls: type, name: str, table: Mapping[str, Mapping[str, str]] = FIELDS) -> str:
    return next((told for base in cls.__mro__ if (told := table.get(base.__name__, {}).get(name))), "")


def _near(name: str, cls: type) -> str:
    """A question after the attribute of a class that is spelt most like a name; "" if none is near."""
    near = difflib.get_close_matches(name, [known for known in dir(cls) if known[0] == name[:1]], 1, 0.8)
    return f"Did you mean {near[0]!r}?" if near else ""


def missing_method(owner: object, name: str, told: str = "") -> AttributeError:
    """The error for an attribute that an agent or a policy lacks, with what another library's name means here, or with the nearest.

    Args:
        told: what to say if it is none of these tables.
    """
    if name.startswith("_"):
        return no_attribute(owner, name, "")
    cls = owner if isinstance(owner, type) else type(owner)
    told = METHODS.get(name, "") or (BUILT if name in BUILDER else told)
    if told not in ("", _ACTION) and not hasattr(cls, "fit"):
        told = f"A policy acts, and no more; of an agent: {told}"
    return no_attribute(owner, name, told or _near(name, cls))


def learn(total_timesteps: object = "N", *others: object, **keywords: object) -> NoReturn:
    """Stand where other libraries' agents have `learn`: say how the call is written here, with its own number.

    Raises:
        UserError: always.
    """
    told = METHODS["learn"].replace("N", shown(total_timesteps) if total_timesteps != "N" else "N")
    more = [f"{key}: {text}" for key in keywords if (text := keyword_told(key))]
    raise UserError(" ".join([f"There is no learn here. {told}", *more]))


def keyword_told(name: str) -> str:
    """Return the sentence about an argument of another library's method; "" if there is none."""
    return KEYWORDS.get(name, "") or answer(f"--{name}")


def answer(name: str) -> str:
    """Return the sentence about a setting or an option of another library, "model.use_lstm" or "--local-dir"; "" if there is none."""
    option = name.startswith("-")
    key = name.lstrip("-").replace("-", "_").removeprefix("model.").partition(".")[0]
    of_option = OPTIONS.get("wandb" if key.startswith("wandb_") else key, "")
    return SETTINGS.get(key, "") or (of_option if option else "")
