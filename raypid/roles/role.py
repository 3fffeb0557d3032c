"""What all roles share: the setup that they are made from, and checks of what a user's loop gives to their methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raypid.plugins.registry import NETWORKS
from raypid.roles.setup import WorkerSetup

if TYPE_CHECKING:
    from raypid.roles.given import Checks


class Role:
    """Base class of roles. Methods that a user's loop calls begin with `check`.

    Args:
        setup: what `raypid.setup(...)` returned.
        numbers: arguments that must be whole numbers of at least 0, by name.

    Raises:
        UserError: `setup` is no Setup, or a number is something else.
    """

    checks: Checks | None = None
    """Checks what methods are given; None in raypid's own loops."""
    parts: tuple[object, ...] = ()
    """Other roles in the same object. A handle calls their methods too."""

    def __init__(self, setup: WorkerSetup, **numbers: int) -> None:
        if not isinstance(setup, WorkerSetup) or setup.checks:
            from raypid.roles.given import Checks

            self.checks = Checks(type(self).__name__, setup, numbers)
        for name, entry in setup.spec.networks.items():  # which this process may lack
            NETWORKS.register(name, entry)

    def check(self, call: str, **arguments: object) -> None:
        """Check the arguments of a call such as "Learner.update", if the setup says so."""
        if self.checks is not None:
            self.checks.check(call, arguments)
