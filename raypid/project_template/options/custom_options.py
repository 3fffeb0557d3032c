"""Options that environment, model and agent share."""


def get_custom_args(parser):
    """They show in `raypid train --help` and arrive in the `args` of every class."""
    parser.add_argument("--step_cost", type=float, default=0.02, help="what each step costs in the corridor")
