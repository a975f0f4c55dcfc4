"""Networks whose modes, hooks or weights are changed for a moment, while other threads may want to use them.

Modes and hooks belong to a network and not to a thread. A block that changes them therefore has the network to itself:
it waits for the blocks that only read it, and they wait for it. Blocks that read run at the same time.

A network that is called directly, ``net(x)``, asks nobody. Give a teacher a copy of it if another thread does so.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, get_ident

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from opu.batches import Batch, call, take


class _Uses:
    """Which threads use which networks now; the parts of a network are known by their ``id``."""

    def __init__(self) -> None:
        self.turn = Condition()
        self.reading: dict[int, list[set[int]]] = {}  # of threads that run
        self.changing: list[set[int]] = []
        self.owner: int | None = None  # the one thread that changes networks

    def start_reading(self, parts: set[int]) -> None:
        """Wait until no other thread changes these parts."""
        with self.turn:
            mine = [*self.reading.get(get_ident(), []), parts]
            self._wait(lambda: self.owner in (None, get_ident()) or not _overlap(mine, self.changing))
            self.reading.setdefault(get_ident(), []).append(parts)

    def stop_reading(self) -> None:
        with self.turn:
            mine = self.reading[get_ident()]
            mine.pop()
            if not mine:
                del self.reading[get_ident()]
            self.turn.notify_all()

    def start_changing(self, parts: set[int]) -> None:
        """Wait until no other thread changes anything, and then until none reads these parts."""
        with self.turn:
            self._wait(lambda: self.owner in (None, get_ident()))
            self.owner = get_ident()
            self.changing.append(parts)  # from here on, no other thread begins to read them
            try:
                self._wait(
                    lambda: not any(_overlap(r, [parts]) for who, r in self.reading.items() if who != get_ident())
                )
            except BaseException:  # an interrupt
                self.stop_changing()
                raise

    def stop_changing(self) -> None:
        with self.turn:
            self.changing.pop()
            if not self.changing:
                self.owner = None
            self.turn.notify_all()

    def _wait(self, free: Callable[[], bool]) -> None:
        # A thread that waits runs no network. It does not count as a reader meanwhile, or two threads that wait for each
        # other would do so for ever. What it was reading is as it was when it goes on.
        if free():
            return
        paused = self.reading.pop(get_ident(), None)
        self.turn.notify_all()
        try:
            self.turn.wait_for(free)
        finally:
            if paused is not None:
                self.reading[get_ident()] = paused


def _overlap(some: list[set[int]], others: list[set[int]]) -> bool:
    return any(not a.isdisjoint(b) for a in some for b in others)


_USES = _Uses()
# A forked process has one thread, and the others of its parent will never end what they were doing.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _USES.__init__())  # type: ignore[misc]


@contextmanager
def changing(*modules: nn.Module) -> Iterator[None]:
    """A block that may change modes, hooks and weights of these networks; no other such block runs at the same time."""
    _USES.start_changing({id(child) for module in modules for child in module.modules()})
    try:
        yield
    finally:
        _USES.stop_changing()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients within the block; every submodule's own mode is restored after it.

    A network that is in evaluation mode already is not changed, and several threads may use it at once.
    """
    children = list(module.modules())
    _USES.start_reading({id(child) for child in children})
    try:
        if not any(child.training for child in children):
            with torch.no_grad():
                yield
            return
    finally:
        _USES.stop_reading()
    with changing(module), torch.no_grad():
        modes = {child: child.training for child in children}
        module.eval()
        try:
            yield
        finally:
            for child, mode in modes.items():
                child.training = mode


class _Draws(TorchDispatchMode):
    """Takes note of operators that draw random numbers in this thread."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.any = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.any = self.any or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


@contextmanager
def without_draws(restore: Callable[[], None]) -> Iterator[None]:
    """A block after which random numbers go on as if it had drawn none.

    Nothing is restored if this thread drew none, as a network in evaluation mode does: numbers that another thread drew
    meanwhile must not come again.

    Args:
        restore: Sets the random state of before the block.
    """
    draws = _Draws()
    try:
        with draws:
            yield
    finally:
        if draws.any:
            restore()


def bytes_per_row(module: nn.Module, x: Batch) -> int:
    """Upper bound of the memory that one input needs in a module: the sizes of the outputs of all its leaves."""
    total = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total
        tensors = output if isinstance(output, tuple | list) else [output]
        total += sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))

    leaves = [child for child in module.modules() if not any(child.children())]
    with changing(module):
        handles = [leaf.register_forward_hook(count) for leaf in leaves]
        try:
            with evaluating(module):
                call(module, take(x, slice(0, 1)))
        finally:
            for handle in handles:
                handle.remove()
    return max(total, 1)
