"""RLlib's PPO under Ray Tune's PopulationBasedTraining, read from inside: prints one JSON line. Runs in an environment of its own.

The subclasses below only read, and call RLlib's methods. With each checkpoint they leave what the member is at that moment: its settings, and
hashes of its weights, moments and normaliser. After each checkpoint that a member loads they write the same of the running
learner, and for the updates after it what the loss was really called with.
"""

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--stack", choices=("new", "old"), default="new", help="RLlib's API stack")
parser.add_argument("--reuse-actors", action="store_true")
parser.add_argument("--members", type=int, default=4)
parser.add_argument("--cpus", type=int, required=True, help="members that run at a time; the others wait, paused")
parser.add_argument("--iterations", type=int, required=True, help="of each member")
parser.add_argument("--interval", type=int, required=True, help="iterations between perturbations")
parser.add_argument("--synch", action="store_true", help="all members wait for each other before a perturbation")
parser.add_argument("--max-seconds", type=float, default=300, help="of the experiment")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
import ray  # noqa: E402
import torch  # noqa: E402
from ray import tune  # noqa: E402
from ray.rllib.algorithms.ppo import PPO, PPOConfig  # noqa: E402
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy  # noqa: E402
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner  # noqa: E402
from ray.rllib.connectors.agent.synced_filter import SyncedFilterAgentConnector  # noqa: E402
from ray.rllib.connectors.env_to_module.mean_std_filter import MeanStdFilter  # noqa: E402
from ray.tune.schedulers import PopulationBasedTraining  # noqa: E402

NEW = args.stack == "new"
BATCH = "train_batch_size_per_learner" if NEW else "train_batch_size"
SETTINGS = ("lr", "clip_param", "entropy_coeff", "minibatch_size", BATCH)
FOLDER = tempfile.mkdtemp(prefix="rllib-pbt-")
EVENTS = os.path.join(FOLDER, "events.jsonl")
LIVE = "live.json"


def digest(tree):
    """A hash of all arrays and numbers in a tree: equal only where every bit is."""
    found = hashlib.sha256()

    def add(key, node):
        if isinstance(node, dict):
            for name in sorted(node, key=str):
                add(f"{key}/{name}", node[name])
        elif isinstance(node, (list, tuple)):
            for index, item in enumerate(node):
                add(f"{key}/{index}", item)
        elif isinstance(node, (str, bytes)):
            found.update(f"{key} {node!r} ".encode())
        else:
            array = torch.as_tensor(node).detach().cpu().numpy()
            found.update(f"{key} {array.dtype} {array.shape} ".encode() + array.tobytes())

    add("", tree)
    return found.hexdigest()[:16]


class ReadingLearner(PPOTorchLearner):
    """PPO's learner of the new stack, which notes what its loss is called with."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        seen = self.__dict__.setdefault("seen", [])
        seen.append({
            "lr": self.get_optimizer(module_id).param_groups[0]["lr"],
            "clip_param": config.clip_param,
            "entropy_coeff": float(self.entropy_coeff_schedulers_per_module[module_id].get_current_value()),
            "minibatch_size": len(batch["obs"]),
            "kl_coeff": float(self.curr_kl_coeffs_per_module[module_id]),
        })  # fmt: skip
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


class ReadingPolicy(PPOTorchPolicy):
    """PPO's policy of the old stack, which notes what its loss is called with."""

    def loss(self, model, dist_class, train_batch):
        seen = self.__dict__.setdefault("seen", [])
        seen.append({
            "lr": self._optimizers[0].param_groups[0]["lr"],
            "clip_param": self.config["clip_param"],
            "entropy_coeff": self.entropy_coeff,
            "minibatch_size": len(train_batch["obs"]),
            "kl_coeff": float(self.kl_coeff),
        })  # fmt: skip
        return super().loss(model, dist_class, train_batch)


class Checked(PPO):
    """PPO that writes what it is when it saves, when it has loaded, and what its updates used."""

    @classmethod
    def get_default_policy_class(cls, config):
        return ReadingPolicy

    def learning(self):
        """What learns in this process: the learner, or the policy of the old stack."""
        return self.learner_group._learner if NEW else self.get_policy()

    def live(self):
        """The member as it runs now."""
        if NEW:
            learner = self.learning()
            optimizer = learner.get_optimizer("default_policy")
            weights = learner.module["default_policy"].state_dict()
            acting = self.env_runner.module.state_dict()
            shared = {name: weights[name] for name in acting}
            (normaliser,) = (c for c in self.env_runner._env_to_module.connectors if isinstance(c, MeanStdFilter))
            statistics = [part["running_stats"] for part in normaliser.get_state().values()]
            scheduled = learner._optimizer_lr_schedules[optimizer].get_current_value()
            kl_coeff = float(learner.curr_kl_coeffs_per_module["default_policy"])
        else:
            policy = self.learning()
            optimizer, weights = policy._optimizers[0], policy.model.state_dict()
            acting = shared = {}  # one model learns and acts
            (normaliser,) = policy.agent_connectors[
                SyncedFilterAgentConnector
            ]  # what acts; worker.filters is stale after a load
            statistics = normaliser.filter.running_stats.to_state()
            scheduled, kl_coeff = policy.cur_lr, float(policy.kl_coeff)
        return {
            "trial": self._storage.trial_dir_name,
            "iteration": self.iteration,
            "settings": {key: self.config[key] for key in SETTINGS},
            "weights": digest(weights),
            "acting": digest(acting) == digest(shared),
            "moments": digest(optimizer.state_dict()["state"]),
            "normaliser": digest(statistics),
            "optimizer_lr": optimizer.param_groups[0]["lr"],
            "scheduled_lr": float(scheduled),
            "kl_coeff": kl_coeff,
        }

    def write(self, **event):
        event |= {"trial": self._storage.trial_dir_name, "pid": os.getpid()}
        with open(EVENTS, "a") as file:
            file.write(json.dumps(event, default=float) + "\n")

    def save_checkpoint(self, checkpoint_dir):
        super().save_checkpoint(checkpoint_dir)
        (Path(checkpoint_dir) / LIVE).write_text(json.dumps(self.live(), default=float))

    def load_checkpoint(self, checkpoint_dir):
        super().load_checkpoint(checkpoint_dir)
        donor = json.loads((Path(checkpoint_dir) / LIVE).read_text())
        self.write(event="load", donor=donor, live=self.live())

    def step(self):
        seen = self.learning().seen = []
        result = super().step()
        if NEW:
            reported = result["learners"]["default_policy"]["default_optimizer_learning_rate"]
            steps = result["env_runners"]["num_env_steps_sampled"]
        else:
            reported = result["info"]["learner"]["default_policy"]["learner_stats"]["cur_lr"]
            steps = result["num_env_steps_sampled_this_iter"]
        used = {name: sorted({row[name] for row in seen}) for name in ("lr", "clip_param", "entropy_coeff")}
        used["minibatch_size"] = max(row["minibatch_size"] for row in seen)
        used |= {BATCH: steps, "kl_coeff": seen[0]["kl_coeff"], "updates": len(seen)}
        self.write(event="step", used=used, reported_lr=float(reported))
        return result


def explore(config):
    """Keep a minibatch within the batch, as the documentation's example does."""
    config["minibatch_size"] = max(16, min(config["minibatch_size"], config[BATCH] // 2))
    return config


random.seed(args.seed)
space = {
    "lr": tune.loguniform(1e-4, 1e-2), "clip_param": tune.uniform(0.1, 0.4), "entropy_coeff": tune.uniform(0.001, 0.02),
    "minibatch_size": tune.randint(32, 129), BATCH: tune.randint(256, 769),
}  # fmt: skip
start = {key: value for key, value in space.items() if key != "train_batch_size_per_learner"}  # which PBT draws itself
config = PPOConfig().environment("CartPole-v1").training(num_epochs=2, **start).env_runners(num_env_runners=0)
if NEW:
    config = config.env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    config = config.learners(num_learners=0, learner_class=ReadingLearner)
else:
    config = config.api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    config = config.env_runners(observation_filter="MeanStdFilter")
ray.init(num_cpus=args.cpus, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
metric = "env_runners/episode_return_mean" if NEW else "env_runners/episode_reward_mean"
scheduler = PopulationBasedTraining(
    time_attr="training_iteration", perturbation_interval=args.interval, quantile_fraction=0.5,
    hyperparam_mutations=space, custom_explore_fn=explore, synch=args.synch,
)  # fmt: skip
tuner = tune.Tuner(
    Checked, param_space=config,
    tune_config=tune.TuneConfig(
        metric=metric, mode="max", scheduler=scheduler, num_samples=args.members, reuse_actors=args.reuse_actors,
        time_budget_s=args.max_seconds,
    ),
    run_config=tune.RunConfig(
        stop={"training_iteration": args.iterations}, storage_path=FOLDER, name="pbt", verbose=0,
    ),
)  # fmt: skip
start = time.perf_counter()
results = tuner.fit()
late = time.perf_counter() - start >= args.max_seconds
events = [json.loads(line) for line in Path(EVENTS).read_text().splitlines()] if os.path.exists(EVENTS) else []
exploits = Path(FOLDER, "pbt", "pbt_global.txt")
chosen = [json.loads(line)[5] for line in exploits.read_text().splitlines()] if exploits.exists() else []
row = {
    "library": f"rllib {ray.__version__}", "torch": torch.__version__, "python": sys.version.split()[0], "batch": BATCH,
    "events": events, "chosen": [{key: config[key] for key in SETTINGS} for config in chosen],
    "late": late,
    "errors": [str(error).strip().splitlines()[-1] for error in results.errors],
}  # fmt: skip
print(json.dumps(row), flush=True)
