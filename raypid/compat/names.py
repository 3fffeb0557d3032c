"""Names of other libraries. docs/names.md shows them; docs/coming-from/ explains what has no name here."""

from __future__ import annotations

UNREMARKED = {"env_name": "env", "agent_name": "agent", "model_name": "model.network"}
"""Settings that stand in every command of two source documents -> ours. No run remarks on them."""
PROMISED = {
    **UNREMARKED,
    "weights_file": "init_from", "num_sgd_iter": "num_epochs", "sgd_batchsize": "batch_size", "redis_address": "address",
}  # fmt: skip
"""Settings that the source documents use -> ours. They are keywords of `raypid.PPO` too."""
ALIASES = {
    **PROMISED,
    "learning_rate": "lr", "discount": "gamma", "lambda": "gae_lambda", "lambda_": "gae_lambda", "lam": "gae_lambda",
    "num_env_runners": "num_workers", "num_rollout_workers": "num_workers", "num_envs_per_env_runner": "num_envs_per_worker",
    "num_cpus_per_env_runner": "num_cpus_per_worker", "num_steps": "fragment_length", "rollout_fragment_length": "fragment_length",
    "sgd_minibatch_size": "batch_size", "n_epochs": "num_epochs", "update_epochs": "num_epochs",
    "ent_coef": "entropy_coef", "entropy_coeff": "entropy_coef", "clip_range": "clip", "clip_coef": "clip", "clip_param": "clip",
    "clip_ratio": "clip", "clip_range_vf": "value_clip", "normalize_advantage": "normalize_advantages", "norm_adv": "normalize_advantages",
    "replay_size": "buffer_size", "learning_starts": "start_steps", "tau": "target_tau",
    "exploration_initial_eps": "epsilon_start", "exploration_final_eps": "epsilon_end", "start_e": "epsilon_start", "end_e": "epsilon_end",
    "env_kwargs": "env_config", "max_ep_len": "time_limit", "max_episode_steps": "time_limit",
    "net_arch": "model.hidden", "hidden_sizes": "model.hidden", "fcnet_hiddens": "model.hidden", "fcnet_activation": "model.activation",
    "vf_share_layers": "model.shared",
    "q_lr": "lr_critic", "critic_lr": "lr_critic", "n_critics": "num_critics", "target_policy_noise": "target_noise",
    "policy_noise": "target_noise", "noise_clip": "target_noise_clip", "initial_alpha": "alpha_init",
    "n_atoms": "num_atoms", "double_q": "double", "burn_in_len": "burn_in", "adam_epsilon": "adam_eps", "rms_prop_eps": "rmsprop_eps",
}  # fmt: skip
"""Other names of settings -> ours. They mean exactly the same, in the same unit, for every algorithm that has the setting."""
ANSWERS = {
    "is_restore": "init_from", "recover": "resume", "total_epochs": "stop", "object_store_memory": "ray start --object-store-memory",
    "upload_dir": "out", "local_dir": "out", "checkpoint_freq": "checkpoint_interval",
}  # fmt: skip
"""Names in the source documents that are not accepted as settings -> what they are here, for a message."""
