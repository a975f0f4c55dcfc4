"""What every kind of inputs offers: passes in order, held-out inputs, and a feed of batches that can be resumed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from opu.batches import Batch, num_rows, take

MOST_HELD_OUT = 2048  # inputs that are kept of a source that does not lie in memory
Convert = Callable[[Batch], Batch]
NONE = "inputs must have at least one row; got none. Check the path or the filter that made them."


class Feed(ABC):
    """The batches that a run trains on, one for each step."""

    @abstractmethod
    def batch(self, step: int) -> Batch | None:
        """The batch of a step; steps are taken in order. None if there are no more."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold for the next batch to be the same."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state; the random state is restored by the caller, afterwards."""


class Source(ABC):
    """Inputs of one kind.

    Attributes:
        in_order: Whether every pass gives the same inputs in the same order.
        can_repeat: Whether there can be a second pass.
        shuffled: Whether the feed shuffles rows, so that their place in a batch means nothing.
    """

    in_order = True
    can_repeat = True
    shuffled = True

    @abstractmethod
    def batches(self, size: int = 1024) -> Iterator[Batch]:
        """One pass over all inputs, in their order."""

    @abstractmethod
    def hold_out(self, fraction: float, num_steps: int | None) -> tuple["Source", list[Batch]]:
        """The inputs to train on, and those held out, as batches.

        Args:
            fraction: Fraction of the inputs to hold out.
            num_steps: Number of steps that the run will take, if that is known.
        """

    @abstractmethod
    def num_batches(self, batch_size: int) -> int | None:
        """Number of batches in a pass; None if it is endless or unknown."""

    @abstractmethod
    def feed(self, batch_size: int) -> Feed:
        """The batches to train on."""

    @abstractmethod
    def converted(self, convert: Convert) -> "Source":
        """The same inputs after a conversion of each batch."""

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What a resumed run compares, by name: the same for the same inputs in every process, whatever the order of a pass.

        Random numbers go on as if nothing had been read. What is None cannot be compared.
        """

    def example(self, count: int = 8) -> Batch:
        """The first inputs; a source that can be read only once keeps them for the first pass."""
        batch = next(self.batches(count), None)
        if batch is None or num_rows(batch) == 0:
            raise ValueError(NONE)
        return take(batch, slice(0, count))
