"""An agent of your own: in each worker, it decides which gradients are made of what the model has acted."""

import raypid


@raypid.register_agent("custom_agent")
class CustomAgent:
    """Learns from each fragment `--passes` times."""

    def __init__(self, args, model):
        self.args, self.model = args, model
        self.left = 0

    @staticmethod
    def add_args(parser):
        """Options of this agent: they show in `raypid train --help` and arrive in `args`."""
        parser.add_argument("--passes", type=int, default=2, help="gradients of each fragment")

    def set_weights(self, weights):
        """The newest weights, before the worker acts."""
        self.model.set_weights(weights)

    def send_trajectory(self, trajectory, Rs=None):
        """A fragment: T rows of B environments. Rs [T, B] are its discounted returns."""
        self.trajectory, self.returns, self.left = trajectory, Rs, self.args.passes

    def fetch_grads(self, weights):
        """One gradient a call, or a generator of several; None asks for the next fragment."""
        if not self.left:
            return None
        self.left -= 1
        self.model.set_weights(weights)
        return self.model.step(self.trajectory, self.returns)
