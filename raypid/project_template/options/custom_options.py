"""Options that environment, model and agent share."""


def get_custom_args(parser):
    """They show in `raypid train --help`. A class with `args` finds them there; other environments get those that they name."""
    parser.add_argument("--step_cost", type=float, default=0.02, help="what each step costs in the corridor")
