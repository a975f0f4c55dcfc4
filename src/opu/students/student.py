"""A student: a network that answers every input with a Dirichlet."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opu.checks import check_particles
from opu.distributions.dirichlet import Dirichlet
from opu.distributions.pointwise import maximum_likelihood
from opu.inputs import as_rows
from opu.novelty import Novelty
from opu.students.links import Sigmoid, Link, Softsign, bounds_for, parse_link


class Student(nn.Module):
    """Mean and precision, from two networks or from one trunk with two heads.

    ``student(x)`` is one pass. The mean network gives logits, the precision network one number for each input, which
    the link turns into a log-precision. With a shared trunk, both read the trunk's features.

    Args:
        mean_net: From inputs (or the trunk's features) to ``K`` logits: the paper's prediction model.
        precision_net: From inputs (or the trunk's features) to one number: the paper's concentration model.
        trunk: Shared by both where it is given.
        link: ``exp``, ``softplus``, ``sigmoid(low, high)``, ``softsign(low, high)``, or a link object.
        recipe: How to build this architecture again; :func:`opu.load` needs it.
    """

    def __init__(
        self,
        mean_net: nn.Module,
        precision_net: nn.Module,
        *,
        trunk: nn.Module | None = None,
        link: Link | str = "softsign",
        recipe: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.trunk, self.mean_net, self.precision_net = trunk, mean_net, precision_net
        self.link = parse_link(link)
        self.recipe = recipe
        self.novelty: Novelty | None = None

    def forward(self, x: Tensor) -> Dirichlet:
        """One Dirichlet for each row of ``x``."""
        return Dirichlet.from_logits(*self.heads(x))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the mean, and the log-precision."""
        features = x if self.trunk is None else self.trunk(x).flatten(1)
        z = self.precision_net(features).squeeze(-1)
        # Under autocast the heads may answer in half precision, which a log-precision of 7 does not survive.
        return _at_least_float32(self.mean_net(features)), self.link(_at_least_float32(z))

    def description(self) -> dict[str, Any] | None:
        """How to build this student again, where it knows."""
        return None if self.recipe is None else {**self.recipe, "link": str(self.link)}

    def mean_parameters(self) -> Iterator[nn.Parameter]:
        """What the mean depends on."""
        return _parameters(self.trunk, self.mean_net)

    def precision_parameters(self) -> Iterator[nn.Parameter]:
        """What the precision depends on."""
        return _parameters(self.trunk, self.precision_net)

    def start_mean_from(self, teacher: Any) -> "Student":
        """Start the mean network from the teacher's averaged weights, as the paper does (appendix on sampling).

        An ensemble's weights mean nothing on average: give one of its members, or any other network, itself. Tensors are
        matched in order, so the architectures must agree but names need not; dropout has no weights.
        """
        if hasattr(teacher, "average_weights"):
            weights = teacher.average_weights()
        elif isinstance(teacher, nn.Module):
            weights = teacher.state_dict()
        else:
            raise ValueError(
                "the mean network can start from a teacher over weights (MCDropout, WeightSamples), or from a network such "
                f"as one member of an ensemble; {type(teacher).__name__} has no average_weights()."
            )
        source = [w for w in weights.values() if w.is_floating_point()]
        path = nn.ModuleList([m for m in (self.trunk, self.mean_net) if m is not None])
        target = [w for w in path.state_dict().values() if w.is_floating_point()]
        theirs, ours = [tuple(w.shape) for w in source], [tuple(w.shape) for w in target]
        if theirs != ours:
            raise ValueError(
                f"the mean network must have the teacher's weight shapes to start from them; the teacher has {theirs}, the "
                f"student {ours}. Build the student with the teacher's layer sizes."
            )
        for w, start in zip(target, source, strict=True):
            w.copy_(start)
        return self

    def start_precision_at(self, log_precision: float) -> "Student":
        """Start the precision network about a value, such as the median of what fits the teacher's particles."""
        last = [layer for layer in self.precision_net.modules() if isinstance(layer, nn.Linear)][-1]
        nn.init.constant_(last.bias, self.link.inverse(log_precision))
        return self

    @torch.no_grad()
    def fit_bounds(self, teacher: Any, x: Any, num_particles: int = 200) -> "Student":
        """Widen a link's bounds to what suits the teacher's particles at ordinary inputs; before distilling.

        The default suits posteriors over networks on images. The few members of an ensemble agree far more closely, and a
        student that may not follow them can answer all ordinary inputs with one precision, that of its upper bound.

        Args:
            teacher: Asked about 500 of the inputs at most.
            x: Whatever :func:`opu.distill` takes.
            num_particles: For each input.
        """
        if not isinstance(self.link, Sigmoid | Softsign):
            raise ValueError(f"only a bounded link has bounds to fit; this student's is {self.link}.")
        if self.novelty is not None:
            raise ValueError(
                "bounds are fitted before distilling; this student is trained, and would answer otherwise."
            )
        rows = as_rows(x)
        some = rows.take(torch.arange(0, len(rows), max(1, len(rows) // 500))[:500])
        particles = teacher(some.to(next(self.parameters()).device), num_particles)
        check_particles(particles, num_rows=len(some))
        low, high = bounds_for(maximum_likelihood(particles).log_precision)
        self.link = replace(self.link, low=min(self.link.low, low), high=max(self.link.high, high))
        return self

    def save(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` into a folder; :func:`opu.load` reads them."""
        from opu.students.store import save

        save(self, Path(folder))


def _parameters(*modules: nn.Module | None) -> Iterator[nn.Parameter]:
    for module in modules:
        if module is not None:
            yield from module.parameters()


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.element_size() >= 4 else values.float()
