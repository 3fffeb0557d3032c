"""An agent of your own: in each worker, it turns what the model has acted into gradients."""

import raypid


@raypid.register_agent("custom_agent")
class CustomAgent:
    """REINFORCE: how much more than usual each action brought, within its fragment."""

    def __init__(self, args, model):
        self.args, self.model = args, model
        self.waiting = []

    @staticmethod
    def add_args(parser):
        """Options of this agent: they show in `raypid train --help` and arrive in `args`."""
        parser.add_argument("--advantage_scale", type=float, default=1.0, help="factor on advantages")

    def set_weights(self, weights):
        """The newest weights, before the worker acts."""
        self.model.set_weights(weights)

    def send_trajectory(self, trajectory, Rs=None):
        """A fragment: T rows of B environments. Rs [T, B] are its discounted returns."""
        self.waiting.append((trajectory, Rs))

    def fetch_grads(self, weights):
        """One gradient a call; None asks for the next fragment."""
        if not self.waiting:
            return None
        trajectory, returns = self.waiting.pop(0)
        self.model.set_weights(weights)
        usual, spread = returns[trajectory.valid].mean(), returns[trajectory.valid].std() + 1e-8
        return self.model.step(trajectory, self.args.advantage_scale * (returns - usual) / spread)
