"""Options that environment, model and agent share."""


def get_custom_args(parser):
    """They show in `raypid train --help`, and arrive in `args`, or in the parameters of an environment that have their names."""
    parser.add_argument("--step_cost", type=float, default=0.02, help="what each step costs in the corridor")
