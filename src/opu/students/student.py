"""A student: a network that predicts a Dirichlet for every input."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opu.batches import Batch, call, first_rows, fit_to, num_rows, reads, take
from opu.checks import check_particles
from opu.choices import Updates
from opu.distributions import SimplexDistribution
from opu.distributions.pointwise import maximum_likelihood
from opu.inputs import Features, InDataset, InMemory, as_source
from opu.inputs.source import NONE
from opu.students.base import BaseStudent
from opu.students.families import DirichletFamily, Family
from opu.students.links import BoundedLink, Link, parse_link
from opu.students.links import bounds_for as link_bounds
from opu.students.reading import conversion, explained
from opu.students.signature import described
from opu.students.start import checksum, copy_weights, network_of
from opu.teachers import Teacher


class Student(BaseStudent):
    """Mean and precision, from two networks or from one trunk with two heads.

    ``student(x)`` is one forward pass. The mean network gives logits. For a Dirichlet the precision network gives one number
    per input, and the link turns it into a log-precision; for a logistic-normal it gives scales and factors of the logits.
    With a shared trunk, both read the trunk's features.

    Args:
        mean_net: From inputs (or the trunk's features) to ``K`` logits: the paper's prediction model.
        precision_net: From inputs (or the trunk's features) to one number: the paper's concentration model.
        trunk: A network that both share, if there is one.
        link: Of Dirichlets: ``exp``, ``softplus``, ``sigmoid(low, high)``, ``softsign(low, high)``, or a link object.
        family: What the student predicts; Dirichlets by default.
        architecture: How to build these networks again; :func:`opu.load` needs it.
    """

    def __init__(
        self,
        mean_net: nn.Module,
        precision_net: nn.Module,
        *,
        trunk: nn.Module | None = None,
        link: Link | str | None = None,
        family: Family | None = None,
        architecture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.trunk, self.mean_net, self.precision_net = trunk, mean_net, precision_net
        self.family = family or DirichletFamily(parse_link("softsign" if link is None else link))
        self.architecture = architecture
        # Set by builders with random weights; while it agrees, nobody has trained or loaded this student.
        self.untrained: int | None = None
        # What one input looks like (opu.students.signature), once it is known.
        self.inputs: dict[str, Any] | None = None
        # No rows, in the structure in which they came: a description cannot hold a user's dataclass.
        self.like: Batch | None = None

    def forward(self, x: Batch) -> SimplexDistribution:
        """One distribution for each row of ``x``: a tensor, or a dict, tuple or dataclass of tensors."""
        try:
            return self.family.distribution(*self.heads(x))
        except (RuntimeError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise explained(self, x, error) from error

    def heads(self, x: Batch) -> tuple[Tensor, Tensor]:
        """The logits, and the family's other parameters: the log-precision of a Dirichlet."""
        features = x if self.trunk is None else call(self.trunk, x).flatten(1)
        z = call(self.precision_net, features)
        # Under autocast the heads may return half precision; a log-precision of 7 needs float32.
        return _at_least_float32(call(self.mean_net, features)), self.family.parameters(_at_least_float32(z))

    @property
    def link(self) -> Link | None:
        """The link to the log-precision, if the student predicts Dirichlets."""
        return self.family.link if isinstance(self.family, DirichletFamily) else None

    def reads(self) -> nn.Module:
        """The network whose ``forward`` meets the inputs."""
        return reads(self.mean_net if self.trunk is None else self.trunk)

    def columns(self) -> list[str] | None:
        """Names of the columns of the data frame that the student was distilled on, if it was one."""
        known = (self.inputs or {}).get("columns")
        return None if known is None else [str(name) for name in known]

    def input_shape(self) -> tuple[int, ...] | None:
        """Shape of a single input, if it is one tensor and known."""
        known = (self.inputs or {}).get("shape")
        return None if known is None else tuple(known)

    def description(self) -> dict[str, Any] | None:
        """How to build this student again, if it knows."""
        if self.architecture is None:
            return None
        known = {"family": str(self.family)} | ({} if self.link is None else {"link": str(self.link)})
        return {**self.architecture, **known, **({} if self.inputs is None else {"inputs": self.inputs})}

    def saw(self, x: Batch, columns: list[str] | None = None) -> None:
        """Remember shape and type of inputs, without which a network of a user's own class cannot be written to a file."""
        self.inputs, self.like = described(x), take(x, slice(0, 0))
        if columns is not None:
            self.inputs["columns"] = columns

    def parameter_groups(self, updates: Updates) -> list[list[nn.Parameter]]:
        """All parameters, or the mean's and the precision's in turn; a shared trunk belongs to both."""
        if updates == "joint":
            return super().parameter_groups(updates)
        return [list(self._path(net).parameters()) for net in (self.mean_net, self.precision_net)]

    def bounds(self) -> BoundedLink | None:
        """The link, if it is a bounded one."""
        return self.link if isinstance(self.link, BoundedLink) else None

    def family_name(self) -> str:
        """The name of the family that the student predicts."""
        return self.family.name

    def link_name(self) -> str:
        """The link as text."""
        return "" if self.link is None else str(self.link)

    def fresh_start(self, teacher: Teacher, recipe: Any) -> "Student":
        """Get ready for a new distillation: untrained networks start from the teacher's network if shapes agree."""
        net = network_of(teacher) if recipe.start_from_teacher and self.is_untrained() else None
        if net is not None and copy_weights(net, self._path(self.mean_net)):
            self.start_precision_from_mean()
        super().fresh_start(teacher, recipe)
        return self

    def layers_to_keep(self) -> list[str]:
        """Batch norm that came with statistics; in a copy of the teacher's network, every layer.

        Its dropout, noise and auxiliary outputs belong to the teacher's training. Recurrent layers have none of these (their
        dropout is 0), and on a GPU they can only learn in training mode.
        """
        if not self._copies_teacher:
            return super().layers_to_keep()
        return [name for name, layer in self.named_modules() if name and not isinstance(layer, nn.RNNBase)]

    @property
    def _copies_teacher(self) -> bool:
        return self.architecture is not None and self.architecture["architecture"] == "from_teacher"

    def is_untrained(self) -> bool:
        """Whether all but the precision's last layer still have the random weights that they were built with."""
        return self.untrained is not None and self.untrained == checksum(self._hidden_layers())

    def mark_untrained(self) -> "Student":
        """Remember the weights of now as random ones, which a teacher's weights may replace."""
        self.untrained = checksum(self._hidden_layers())
        return self

    def start_mean_from(self, teacher: Any) -> "Student":
        """Start the mean network from the teacher's weights, as the paper does (appendix on sampling).

        Tensors are matched in order, so architectures must agree but names need not; dropout has no weights.

        Args:
            teacher: A teacher with a network (MCDropout, WeightSamples, Ensemble), or any network.
        """
        net = network_of(teacher)
        if net is None:
            raise ValueError(
                "the mean network can start from a teacher over weights (MCDropout, WeightSamples, Ensemble), or from a "
                f"network; {type(teacher).__name__} has none."
            )
        path = self._path(self.mean_net)
        if not copy_weights(net, path):
            theirs, ours = ([tuple(w.shape) for w in each.state_dict().values()] for each in (net, path))
            raise ValueError(
                f"the mean network must have the teacher's weight shapes to start from them; the teacher has {theirs}, the "
                f"student {ours}. Build the student with the teacher's layer sizes, or with opu.students.from_teacher."
            )
        return self

    def start_precision_from_mean(self) -> "Student":
        """Start the hidden layers of the precision network as those of the mean network, if these have the same shapes."""
        if isinstance(self.mean_net, nn.Sequential) and isinstance(self.precision_net, nn.Sequential):
            copy_weights(self.mean_net[:-1], self.precision_net[:-1])
        return self

    def start_precision_at(self, log_precision: float) -> "Student":
        """Start the precision network near a value, such as the median of what fits the teacher's particles."""
        if self.link is None:
            raise ValueError(f"only a Dirichlet has a precision to start at; this student predicts {self.family}.")
        last = [layer for layer in self.precision_net.modules() if isinstance(layer, nn.Linear)][-1]
        nn.init.constant_(last.bias, self.link.inverse(log_precision))
        return self

    @torch.no_grad()
    def fit_bounds(self, teacher: Teacher, x: Any, num_particles: int = 200) -> "Student":
        """Widen a link's bounds to what suits the teacher's particles at in-distribution inputs; before distilling.

        The default suits posteriors over networks on images. The few members of an ensemble agree far more closely. A
        student that cannot follow them may predict one precision for all in-distribution inputs, that of its upper bound.

        Args:
            teacher: Gives particles for at most 500 of the inputs.
            x: Whatever :func:`opu.distill` takes.
            num_particles: Number of particles per input.
        """
        link = self.bounds()
        if link is None:
            what = f"'s is {self.link}" if self.link else f" predicts {self.family}"
            raise ValueError(f"only a bounded link has bounds to fit; this student{what}.")
        if self.novelty is not None:
            raise ValueError(
                "bounds are fitted before distilling; this student is trained, and would predict otherwise."
            )
        some = self._some(x, 500)
        particles = torch.cat([teacher(part, num_particles) for part in some], 1)
        check_particles(particles, num_rows=sum(num_rows(part) for part in some))
        low, high = link_bounds(maximum_likelihood(particles).log_precision)
        wider = replace(link, low=min(link.low, low), high=max(link.high, high))
        self.family = DirichletFamily(wider)  # type: ignore[arg-type]
        return self

    def _some(self, inputs: Any, most: int) -> list[Batch]:
        """At most so many inputs: evenly spaced rows, or the first ones of a loader or stream."""
        source = as_source(inputs, Features(self.reads()), endless=True)
        if isinstance(source, InMemory | InDataset):
            parts = [source.take(torch.arange(0, len(source), max(1, len(source) // most))[:most])]
        else:
            parts = list(first_rows(source.batches(), most))
        if not parts:
            raise ValueError(NONE)
        convert = conversion(self, take(parts[0], slice(0, 2)))
        return [fit_to(convert(part), self) for part in parts]

    def save(self, folder: str | Path) -> None:
        """Write ``model.safetensors`` into a folder: all that :func:`opu.load` needs, in the place of what was there."""
        from opu.students.store import save

        save(self, Path(folder))

    def _path(self, net: nn.Module) -> nn.ModuleList:
        """The trunk, if there is one, and one of the networks."""
        return nn.ModuleList([net] if self.trunk is None else [self.trunk, net])

    def _hidden_layers(self) -> nn.ModuleList:
        """All of the student but the last layer of its precision."""
        rest = self.precision_net[:-1] if isinstance(self.precision_net, nn.Sequential) else nn.Identity()
        return self._path(self.mean_net).append(rest)


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.element_size() >= 4 else values.float()
