"""The best Dirichlet for each input's particles, fitted input by input: the best that an amortised student could predict.

Both fits are batched: every input takes its own Newton or quasi-Newton steps, all of them in the same few tensors.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from opu.distributions.dirichlet import Dirichlet
from opu.distributions.kernels import Exponential, Kernel
from opu.distributions.moments import kernel_to_points, kernel_within

# Particles that coincide have no finite best precision; fits stop at the edge of the supported range.
LARGEST_LOG_PRECISION = 20.0
RowFunction = Callable[[Tensor, Tensor], Tensor]
_LOG_OF_ZERO = -1e4  # in place of minus infinity: a probability that was rounded to 0


def maximum_likelihood(log_particles: Float[Tensor, "S B K"], max_steps: int = 100) -> Dirichlet:
    r"""The Dirichlet under which each input's particles are most likely: the optimum of the forward KL.

    The log-likelihood is concave in :math:`\alpha` and depends on the particles through the mean of their logarithms.
    Its Hessian is diagonal plus rank one, so a Newton step costs as much as a gradient (Minka, 2000). A step that would
    not increase the likelihood is halved, and a concentration falls at most a hundredfold in one step.
    """
    # Normalised again in float64.
    particles = log_particles.double()
    particles = particles.masked_fill(particles == -torch.inf, _LOG_OF_ZERO).log_softmax(-1)
    statistics = particles.mean(0)
    # At the optimum, no concentration is below this bound. From far below it, a Newton step would only double the
    # concentration, or cancel if one class has nearly all the mass.
    alpha = torch.maximum(moment_match(particles).log_concentration().exp(), 1 / (LARGEST_LOG_PRECISION - statistics))
    likelihood = _log_likelihood(alpha, statistics)
    rows = torch.arange(len(alpha), device=alpha.device)
    for _ in range(max_steps):
        if not len(rows):
            break
        moved, value = _climb(alpha[rows], statistics[rows], likelihood[rows])
        moving = (moved.log() - alpha[rows].log()).abs().amax(-1) > 1e-9
        alpha[rows], likelihood[rows] = moved, value
        rows = rows[moving]
    return Dirichlet.from_log_concentration(alpha.log()).to(log_particles.dtype)


def _climb(
    alpha: Float[Tensor, "N K"], statistics: Float[Tensor, "N K"], likelihood: Float[Tensor, " N"]
) -> list[Tensor]:
    """The concentrations and the log-likelihood after one damped Newton step."""
    step = _newton_step(alpha, statistics)

    def attempt(rows: Tensor, size: float) -> tuple[Tensor, tuple[Tensor, ...]]:
        trial = _within_bounds(torch.maximum(alpha[rows] + size * step[rows], alpha[rows] / 100))
        reached = _log_likelihood(trial, statistics[rows])
        return reached >= likelihood[rows], (trial, reached)

    return _line_search(attempt, (alpha, likelihood), max_halvings=12)


def _line_search(
    attempt: Callable[[Tensor, float], tuple[Tensor, tuple[Tensor, ...]]], start: tuple[Tensor, ...], max_halvings: int
) -> list[Tensor]:
    """Try steps of size 1, 1/2, 1/4, .. until each row has accepted one; a row that accepts none stays at the start."""
    found = [values.clone() for values in start]
    rows, size = torch.arange(len(found[0]), device=found[0].device), 1.0
    for _ in range(max_halvings):
        if not len(rows):
            break
        good, trial = attempt(rows, size)
        for values, new in zip(found, trial, strict=True):
            values[rows[good]] = new[good]
        rows, size = rows[~good], size / 2
    return found


def _newton_step(alpha: Float[Tensor, "N K"], statistics: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    total = alpha.sum(-1, keepdim=True)
    gradient = torch.digamma(total) - torch.digamma(alpha) + statistics
    curvature = torch.polygamma(1, alpha)
    shared = torch.polygamma(1, total)
    # (D - c 1 1')^-1 times the gradient; D holds the trigammas of the classes, c is the trigamma of the total.
    weighted = (gradient / curvature).sum(-1, keepdim=True)
    correction = weighted / (1 / shared - (1 / curvature).sum(-1, keepdim=True))
    return (gradient + correction) / curvature


def _log_likelihood(alpha: Float[Tensor, "N K"], statistics: Float[Tensor, "N K"]) -> Float[Tensor, " N"]:
    return torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1) + ((alpha - 1) * statistics).sum(-1)


def _within_bounds(alpha: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    too_sharp = alpha.sum(-1, keepdim=True).log() - LARGEST_LOG_PRECISION
    return alpha * torch.exp(-too_sharp.clamp(min=0))


def moment_match(log_particles: Float[Tensor, "S B K"]) -> Dirichlet:
    """The Dirichlet with the particles' mean and total variance, which is close to the nearest one in MMD."""
    particles = log_particles.double().exp()
    centre = particles.mean(0)
    mean, variance = centre.clamp(min=1e-100), (particles - centre).square().mean(0).sum(-1)
    room = (mean * (1 - mean)).sum(-1)
    spread = torch.where(variance > 1e-20 * room, variance, 1e-20 * room.clamp(min=1e-100))
    precision = (room.clamp(min=1e-100) / spread - 1).clamp(1e-2, 1e8)
    alpha = (mean / mean.sum(-1, keepdim=True) * precision.unsqueeze(-1)).clamp(min=1e-100)
    return Dirichlet.from_log_concentration(alpha.log())


def minimum_mmd(
    log_particles: Float[Tensor, "S B K"],
    kernel: Kernel | None = None,
    max_steps: int = 200,
    *,
    start: Dirichlet | None = None,
    tolerance: float = 1e-10,
) -> Dirichlet:
    """The Dirichlet nearest to each input's particles in exact MMD, by quasi-Newton steps.

    At temperatures of 100 or more, the precision hardly counts beside the mean; from a start that is far off, it may stay.

    Args:
        log_particles: The particles of each input.
        kernel: A kernel that is a power series in the inner product; by default the exponential one.
        max_steps: Largest number of steps.
        start: First guess; by default the most likely Dirichlet.
        tolerance: An input is done once a step lowers its squared MMD by no more than this, times twice the sum of the
            kernel's coefficients beyond the linear one where that is below 1: the precision is fitted by them alone.
    """
    _, *coefficients = (kernel or Exponential()).power_series()
    coefficients = [0.0, *coefficients]  # a constant cancels
    scale = min(1.0, 2 * math.fsum(coefficients[2:])) or 1.0
    points = log_particles.double().exp()
    start = maximum_likelihood(log_particles.double()) if start is None else start

    def to_dirichlet(parameters: Tensor) -> Dirichlet:
        log_precision = parameters[:, -1].clamp(-12.0, LARGEST_LOG_PRECISION)
        return Dirichlet.from_logits(parameters[:, :-1], log_precision)

    def distance(parameters: Tensor, rows: Tensor) -> Tensor:
        q = to_dirichlet(parameters)
        return (kernel_within(q, coefficients) - 2 * kernel_to_points(q, points[:, rows], coefficients)) / scale

    # The most likely Dirichlet may give a rare class a log-mean of -200, where the gradient of the MMD vanishes.
    logits = start.log_mean.double().clamp(min=-15.0)
    parameters = torch.cat([logits, start.log_precision.double().unsqueeze(-1)], -1)
    solution = minimise_rows(distance, parameters, max_steps, tolerance)
    return to_dirichlet(solution).to(log_particles.dtype)


def minimise_rows(
    function: RowFunction, start: Float[Tensor, "B N"], max_steps: int, tolerance: float = 1e-10
) -> Float[Tensor, "B N"]:
    """Minimise one function for each row by BFGS with backtracking, all rows at once.

    Args:
        function: From parameters and the numbers of their rows to one value per row.
        start: First guess, one row for each function.
        max_steps: Largest number of steps.
        tolerance: A row is done once a step lowers its value by no more than this.
    """
    rows = torch.arange(len(start), device=start.device)
    x, (value, gradient) = start.clone(), _value_and_gradient(function, start, rows)
    identity = torch.eye(start.shape[-1], dtype=start.dtype, device=start.device)
    # The first step has length 0.1 whatever the gradient; the curvature that it finds sets the scale of later steps.
    inverse = identity * (0.1 / gradient.norm(dim=-1).clamp(min=1e-300))[:, None, None]
    for number in range(max_steps):
        if not len(rows):
            break
        direction = _descent(inverse[rows], gradient[rows])
        moved, new_value, new_gradient = _backtrack(function, x[rows], value[rows], gradient[rows], direction, rows)
        step, change = moved - x[rows], new_gradient - gradient[rows]
        before = _rescaled(identity, step, change) if number == 0 else inverse[rows]
        inverse[rows] = _updated_inverse(before, step, change, identity)
        gaining = value[rows] - new_value > tolerance
        x[rows], value[rows], gradient[rows] = moved, new_value, new_gradient
        rows = rows[gaining]
    return x


def _rescaled(identity: Tensor, step: Tensor, change: Tensor) -> Tensor:
    scale = (step * change).sum(-1) / change.square().sum(-1).clamp(min=1e-300)
    return identity * torch.where(scale > 0, scale, torch.ones_like(scale))[:, None, None]


def _value_and_gradient(function: RowFunction, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = function(x, rows)
        (gradient,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), gradient


def _descent(inverse: Float[Tensor, "R N N"], gradient: Float[Tensor, "R N"]) -> Float[Tensor, "R N"]:
    direction = -(inverse @ gradient.unsqueeze(-1)).squeeze(-1)
    uphill = (direction * gradient).sum(-1) >= 0
    direction = torch.where(uphill.unsqueeze(-1), -gradient, direction)
    # No parameter (a logit or a log-precision) moves by more than 2 in one step.
    return direction * (2 / direction.abs().amax(-1, keepdim=True).clamp(min=2))


def _backtrack(
    function: RowFunction, x: Tensor, value: Tensor, gradient: Tensor, direction: Tensor, rows: Tensor
) -> list[Tensor]:
    slope = (gradient * direction).sum(-1)

    def attempt(some: Tensor, size: float) -> tuple[Tensor, tuple[Tensor, ...]]:
        trial = x[some] + size * direction[some]
        reached, new_gradient = _value_and_gradient(function, trial, rows[some])
        return reached <= value[some] + 1e-4 * size * slope[some], (trial, reached, new_gradient)

    return _line_search(attempt, (x, value, gradient), max_halvings=10)


def _updated_inverse(inverse: Tensor, step: Tensor, change: Tensor, identity: Tensor) -> Tensor:
    curvature = (step * change).sum(-1)
    safe = curvature > 1e-30
    rho = torch.where(safe, 1 / torch.where(safe, curvature, torch.ones_like(curvature)), torch.zeros_like(curvature))
    left = identity - rho[:, None, None] * step.unsqueeze(-1) * change.unsqueeze(-2)
    updated = left @ inverse @ left.mT + rho[:, None, None] * step.unsqueeze(-1) * step.unsqueeze(-2)
    return torch.where(safe[:, None, None], updated, inverse)
