"""What every optimizer of a network does with a loss: backward, the sum over learners, clipping, one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from raypid.ops.optim import Stateful
from raypid.types import Array, ArrayT, Collective

Loss = TypeVar("Loss")


class Optimizer(Stateful, ABC, Generic[ArrayT, Loss]):
    """Base class of optimizers: minimise a loss over the flat parameters [P] of one network.

    The states of Adam and RMSProp are the same in NumPy and torch, so a checkpoint of one kernel continues on the other.
    """

    gradient: ArrayT
    """[P]; every loss writes its gradient here."""
    collective: Collective | None = None
    """The other learners of the run, if there are several: gradients are summed over all of them."""

    def minimise(self, loss: Loss | None, lr: float | None = None, fraction: float | None = None) -> ArrayT | float:
        """Take one step down the gradient of `loss`; returns the gradient's norm before clipping, or 0 if it was not computed.

        Args:
            loss: a mean over this learner's rows; None if it holds no row of the minibatch: it then adds zeros to the sum.
            lr: learning rate; None keeps the last one.
            fraction: this learner's share of the rows of all learners; None if all learners hold the same number.
        """
        self.differentiate(loss)
        if self.collective is not None:
            self.gradient *= 1 / self.collective.size if fraction is None else fraction
            self.collective.sum(self.gradient)
        return self.descend(lr)

    def differentiate(self, loss: Loss | None) -> None:
        """Put the gradient of `loss` into `gradient`; zeros for None."""
        self.gradient[:] = 0
        if loss is not None:
            self.backward(loss)

    def descend(self, lr: float | None = None) -> ArrayT | float:
        """Clip `gradient`, then take one step down it; returns the norm as `minimise` does."""
        norm = self.clip()
        self.step(lr)
        return norm

    @abstractmethod
    def backward(self, loss: Loss) -> None:
        """Add the gradient of `loss` to `gradient`."""

    @abstractmethod
    def clip(self) -> ArrayT | float:
        """Scale `gradient` down to the largest norm allowed; returns the norm that it had."""

    @abstractmethod
    def step(self, lr: float | None) -> None:
        """Take one step down `gradient` as it is."""

    @abstractmethod
    def load_gradient(self, gradient: Array) -> None:
        """Copy a gradient [P] that was computed elsewhere into `gradient`."""
