"""A student without a network recovers a known teacher under every objective: the two laws must agree at the optimum."""

import pytest
import torch

import opu
from opu import Dirichlet
from opu.distributions.kernels import RBF, Exponential, Polynomial
from opu.objectives import ClippedKL, CriticEMD, ExactMMD, ForwardKL, SampledMMD, Sinkhorn

TRUTH = torch.tensor([8.0, 3.0, 1.0])

# Objective, epochs, tolerance in log-precision and in the mean. Transport between small clouds prefers a student that is
# a little too sharp (the bias falls with the number of particles), so its band is wider.
OBJECTIVES = {
    "kl": (ForwardKL(), 20, 0.05, 0.01),
    "clipped_kl": (ClippedKL(), 20, 0.05, 0.01),
    "mmd exponential": (ExactMMD(Exponential()), 30, 0.1, 0.01),
    "mmd polynomial": (ExactMMD(0.5 * Polynomial(3) + 0.5 * Polynomial(4)), 30, 0.1, 0.01),
    "mmd sampled, rbf": (SampledMMD(RBF()), 30, 0.1, 0.01),
    "mmd sampled, sum of kernels": (SampledMMD(RBF((0.1, 0.5)) + 0.5 * Polynomial(3)), 30, 0.1, 0.01),
    "0.1*kl + 10*mmd": (0.1 * ForwardKL() + 10 * ExactMMD(), 20, 0.05, 0.01),
    "sinkhorn": (Sinkhorn(blur=0.1), 10, 0.25, 0.02),
    "emd": (CriticEMD(critic_steps=5, hidden=64, learning_rate=2e-3), 25, 0.2, 0.03),
}


class FreeDirichlet(torch.nn.Module):
    """No network: one learnable Dirichlet for every input."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(num_classes))
        self.log_precision = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Dirichlet:
        rows = len(x)
        return Dirichlet.from_logits(self.logits.expand(rows, -1), self.log_precision.expand(rows))


def dirichlet_teacher(x: torch.Tensor, num_particles: int) -> torch.Tensor:
    return Dirichlet.from_concentration(TRUTH.expand(len(x), -1)).log_rsample(num_particles)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_free_dirichlet_recovers_its_teacher(name):
    objective, epochs, tolerance, mean_tolerance = OBJECTIVES[name]
    student = FreeDirichlet(num_classes=3)
    opu.distill(
        dirichlet_teacher,
        student,
        torch.zeros(128, 2),
        recipe=opu.Recipe(
            objective=objective,
            augment=None,
            num_particles=48,
            epochs=epochs,
            batch_size=8,
            learning_rate=0.1 if name != "emd" else 0.05,
            optimizer=lambda p: torch.optim.Adam(p, betas=(0.5, 0.9)),
        ),
        held_out=0.0,
        progress=False,
    )
    q = student(torch.zeros(1, 2)).detach()
    assert abs(float(q.log_precision) - float(TRUTH.sum().log())) < tolerance
    torch.testing.assert_close(q.mean[0], TRUTH / TRUTH.sum(), atol=mean_tolerance, rtol=0)


class OneParameter(torch.nn.Module):
    """The right mean and one unknown: the log-precision."""

    def __init__(self) -> None:
        super().__init__()
        self.log_precision = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Dirichlet:
        return Dirichlet((TRUTH / TRUTH.sum()).expand(len(x), -1), self.log_precision.expand(len(x)))


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "emd"])
def test_the_true_precision_is_where_the_objective_is_least(name):
    """Values along a line through the truth; a critic's values mean something only once it is trained, as above."""
    objective = OBJECTIVES[name][0]
    x = torch.zeros(32, 2)
    particles = dirichlet_teacher(x, 100)
    student = OneParameter()
    truth = float(TRUTH.sum().log())
    values = {}
    with torch.no_grad():
        for offset in (-1.0, 0.0, 1.0):
            student.log_precision.fill_(truth + offset)
            values[offset] = float(objective(x, particles, student(x)).mean())
    assert values[0.0] < values[-1.0]
    assert values[0.0] < values[1.0]
