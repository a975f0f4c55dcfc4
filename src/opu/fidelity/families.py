"""Which family fits a teacher's particles: each is fitted to some of an input's particles, and judged on others.

With many particles, families are fitted to one half and judged on the other. The members of an ensemble are few and all
there is; each is left out in turn, and families are fitted to the others.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from scipy.special import ndtri, stdtr
from torch import Tensor

from opu import measures
from opu.checks import check_at_least, check_particles
from opu.distributions import SimplexDistribution
from opu.distributions.kernels import Exponential, Kernel
from opu.distributions.log_ratio_fit import fit_logistic_normal
from opu.distributions.pointwise import maximum_likelihood
from opu.distributions.simplex import normalised
from opu.fidelity.coverage import LEVEL, by_decile, class_coverage, deciles, distinct_members, shares_outside
from opu.fidelity.gaps import nearest_dirichlet, squared_distance
from opu.objectives.sampled_mmd import squared_mmd
from opu.students.families import default_rank

MAX_INPUTS, MAX_PARTICLES = 300, 500
FEWEST_MEMBERS = 3  # two to fit, one to judge
DIRICHLETS = ("dirichlet_maximum_likelihood", "dirichlet_minimum_mmd")
LOGISTIC_NORMALS = ("logistic_normal", "logistic_normal_full")
PARTICLES = "particles"
# A Dirichlet is the simpler prediction. It is enough, unless a logistic-normal's intervals are closer by more than this.
MARGIN = 0.05
_MOST_CURVATURES = 2**25  # numbers in the inverse Hessians, one for each input, of the fits by MMD
_MOST_FITS = 1500  # where each member is left out in turn

# A fit may also be a cloud of draws, where there is no distribution of ours for it.
Fit = Callable[[Float[Tensor, "S B K"]], SimplexDistribution | Float[Tensor, "D B K"]]


@dataclass(frozen=True)
class FamilyFit:
    """How well one family fits.

    Attributes:
        coverage: Share of the particles that were left out within the interval of the predicted class, by decile of the
            teacher's predictive entropy.
        below: Share of them below that interval, by decile.
        above: Share of them above it, by decile.
        total_variation: Total variation between the class probabilities of the fit and of the particles.
        squared_mmd: Squared MMD from the distribution of the particles, an estimate without bias.
        mutual_information_error: Mean absolute error of mutual information, over the most uncertain decile.
    """

    coverage: list[float]
    below: list[float]
    above: list[float]
    total_variation: float
    squared_mmd: float
    mutual_information_error: float


@dataclass(frozen=True)
class FamilyComparison:
    """Families side by side on the same particles.

    Attributes:
        families: A row for each fit, and one (``particles``) for the particles that families are fitted to.
        level: Level of the intervals.
        reachable: Share that the right intervals would hold, were they fitted to so few particles. It is that of a Gaussian.
        rank: Number of factors of ``logistic_normal``; ``logistic_normal_full`` has the full covariance.
        num_inputs: Number of inputs that were compared.
        num_fitted: Number of particles that each fit has seen.
        num_members: Number of members that were left out in turn; None if particles were halved.
    """

    families: dict[str, FamilyFit]
    level: float
    reachable: float
    rank: int
    num_inputs: int
    num_fitted: int
    num_members: int | None

    def error(self, name: str) -> float:
        """How far the shares below and above the intervals are from what is reachable, averaged over the deciles.

        Both tails count: the nearest Dirichlet in MMD often leaves too many particles below, and none above.
        """
        found, tail = self.families[name], (1 - self.reachable) / 2
        return sum(abs(each - tail) for each in found.below + found.above) / len(found.coverage)

    @property
    def best_logistic_normal(self) -> str:
        """The logistic-normal with the least error: with few particles, more factors are not always better."""
        return min(LOGISTIC_NORMALS, key=self.error)

    @property
    def advice(self) -> str:
        """The family to use: ``dirichlet`` or ``logistic_normal``.

        A student is trained by likelihood, by MMD or by both, so that it ends up between the most likely Dirichlet and
        the nearest one. The two are the same if a Dirichlet fits. If it does not, MMD hardly sees the precision at a corner,
        and an interval that happens to hold is not one that a student would find. So both must hold.
        """
        gain = max(map(self.error, DIRICHLETS)) - self.error(self.best_logistic_normal)
        return "logistic_normal" if gain > MARGIN else "dirichlet"

    @property
    def sentence(self) -> str:
        """The family to use, and why."""
        likely, nearest, other = (
            _range(self.families[name].coverage) for name in (*DIRICHLETS, self.best_logistic_normal)
        )
        particles = "the particles that it was not fitted to"
        if self.num_members is not None:
            particles = (
                f"the members that were left out in turn (the right one, fitted to {self.num_fitted}, would hold "
                f"{100 * self.reachable:.0f} %)"
            )
        end = ': use family="logistic_normal".' if self.advice == "logistic_normal" else ': family="dirichlet" will do.'
        return (
            f"By decile of entropy, the {100 * self.level:.0f} % interval of the predicted class holds {likely} of "
            f"{particles} under the most likely Dirichlet, {nearest} under the nearest in MMD, and {other} under the best "
            f"logistic-normal{end}"
        )

    def summary(self) -> dict[str, Any]:
        """All of it, ready for a json file; coverage in percent."""
        families = {
            name: asdict(found)
            | {part: [100 * each for each in getattr(found, part)] for part in ("coverage", "below", "above")}
            for name, found in self.families.items()
        }
        return {
            **asdict(self),
            "families": families,
            "reachable": 100 * self.reachable,
            "best_logistic_normal": self.best_logistic_normal,
            "advice": self.advice,
            "sentence": self.sentence,
        }


@torch.no_grad()
def compare_families(
    log_particles: Float[Tensor, "S B K"],
    rank: int | None = None,
    *,
    others: Mapping[str, Fit] | None = None,
    kernel: Kernel | None = None,
    level: float = LEVEL,
    max_inputs: int = MAX_INPUTS,
    max_particles: int = MAX_PARTICLES,
) -> FamilyComparison:
    """Fit each family to the particles of each input, judge it on others, and name the family to use.

    Args:
        log_particles: The teacher's particles, at least three different ones for each input.
        rank: Number of factors of the logistic-normal; by default a student's.
        others: More fits by name, from particles to distributions or to draws. They are compared, and never advised.
        kernel: Kernel of the MMD; by default the exponential one.
        level: Level of the intervals.
        max_inputs: Largest number of inputs to compare on, evenly spread over the teacher's predictive entropy. Fewer are
            used for more than 300 classes.
        max_particles: Largest number of particles per input.
    """
    check_at_least(1, max_inputs=max_inputs)
    check_at_least(2 * FEWEST_MEMBERS, max_particles=max_particles)
    count, num_inputs, num_classes = log_particles.shape
    check_particles(log_particles, num_rows=num_inputs, num_classes=num_classes)
    kernel, rank = kernel or Exponential(), default_rank(num_classes) if rank is None else rank
    members = distinct_members(log_particles)
    if members is not None and len(members) < FEWEST_MEMBERS:
        raise ValueError(f"families are compared on at least three different particles per input; got {len(members)}.")
    most = min(max_inputs, max(10, _MOST_CURVATURES // num_classes**2))
    most = most if members is None else min(most, max(10, _MOST_FITS // len(members)))
    rows = _spread(measures.predictive_entropy(log_particles if members is None else members), most)
    fits: dict[str, Fit] = dict(
        zip(
            DIRICHLETS + LOGISTIC_NORMALS,
            (
                maximum_likelihood,
                lambda particles: nearest_dirichlet(particles, kernel),
                lambda particles: fit_logistic_normal(particles, rank),
                fit_logistic_normal,
            ),
            strict=True,
        ),
        **(others or {}),
    )
    if members is not None:
        found, fitted = _left_out(members[:, rows].double(), fits, kernel, level), len(members) - 1
    else:
        some = torch.linspace(0, count - 1, min(count, max_particles)).round().long()
        particles = log_particles[some][:, rows].double()
        found, fitted = _halved(particles, fits, kernel, level), (len(particles) + 1) // 2
    number = None if members is None else len(members)
    return FamilyComparison(found, level, reachable_coverage(fitted, level), rank, len(rows), fitted, number)


def reachable_coverage(num_fitted: int, level: float = LEVEL) -> float:
    r"""What the interval of a Gaussian holds of one more draw, if its mean and variance come from n draws.

    .. math:: P\Big(|t_{n-1}| < z \sqrt{\tfrac{n}{n + 1}}\Big)

    It is 0.90 for 250 draws and a level of 0.9, and 0.76 for four, which is what an ensemble of five leaves.
    """
    wide = float(ndtri((1 + level) / 2)) * math.sqrt(num_fitted / (num_fitted + 1))
    return float(2 * stdtr(num_fitted - 1, wide) - 1)


def _spread(by: Float[Tensor, " B"], most: int) -> Tensor:
    """At most so many inputs, evenly spread over a quantity."""
    places = torch.linspace(0, len(by) - 1, min(len(by), most), device=by.device).round().long()
    return by.argsort(stable=True)[places]


def _halved(particles: Tensor, fits: dict[str, Fit], kernel: Kernel, level: float) -> dict[str, FamilyFit]:
    # In turns: the first and the second half of a chain differ by more than chance.
    fitted, judged = particles[::2], particles[1::2]
    entropy = measures.predictive_entropy(particles)
    found = {name: _judged(fit(fitted), judged, entropy, kernel, level) for name, fit in fits.items()}
    return found | {PARTICLES: _judged(fitted, judged, entropy, kernel, level)}


def _judged(
    fitted: SimplexDistribution | Tensor, judged: Tensor, entropy: Tensor, kernel: Kernel, level: float
) -> FamilyFit:
    """A fit, or the quantiles of a cloud, judged on particles that it has not seen."""
    if isinstance(fitted, SimplexDistribution):
        outside = class_coverage(fitted, judged, level)
        square = squared_distance(fitted, judged, kernel)
        return _row(entropy, outside["below"], outside["above"], fitted, judged, square)
    low, high = (torch.quantile(normalised(fitted).exp(), (1 + side * level) / 2, dim=0) for side in (-1, 1))
    predicted = measures.mean(fitted).argmax(-1, keepdim=True)
    below, above = (share.gather(-1, predicted).squeeze(-1) for share in shares_outside((low, high), judged))
    return _row(entropy, below, above, fitted, judged, squared_mmd(judged.exp(), fitted.exp(), kernel))


def _left_out(members: Tensor, fits: dict[str, Fit], kernel: Kernel, level: float) -> dict[str, FamilyFit]:
    """Coverage of each member by fits to the others; all else by fits to all members, on the same."""
    number, num_inputs, num_classes = members.shape
    others = torch.stack([torch.cat([members[:each], members[each + 1 :]]) for each in range(number)], 1)
    entropy = measures.predictive_entropy(members)
    found = {}
    for name, fit in fits.items():
        without = fit(others.flatten(1, 2))  # a row for each member and input
        assert isinstance(without, SimplexDistribution), "members left out are compared under distributions"
        outside = class_coverage(without, members.reshape(1, number * num_inputs, num_classes), level)
        below, above = (outside[end].reshape(number, num_inputs).mean(0) for end in ("below", "above"))
        q = fit(members)
        assert isinstance(q, SimplexDistribution)
        found[name] = _row(entropy, below, above, q, members, squared_distance(q, members, kernel))
    return found


def _row(
    entropy: Tensor, below: Tensor, above: Tensor, fitted: SimplexDistribution | Tensor, judged: Tensor, squared: Tensor
) -> FamilyFit:
    variation = (measures.mean(fitted) - measures.mean(judged)).abs().sum(-1) / 2
    error = (measures.mutual_information(fitted) - measures.mutual_information(judged)).abs()
    return FamilyFit(
        by_decile(entropy, 1 - below - above),
        by_decile(entropy, below),
        by_decile(entropy, above),
        float(variation.mean()),
        float(squared.mean()),
        float(error[deciles(entropy)[-1]].mean()),
    )


def _range(shares: list[float]) -> str:
    low, high = round(100 * min(shares)), round(100 * max(shares))
    return f"{low} %" if low == high else f"{low} to {high} %"
