"""Laplace's approximation in the last layer of a trained network, by laplace-torch (the extra ``laplace``)."""

import warnings
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from opu.checks import check_at_least, optional
from opu.devices import device_of
from opu.teachers.base import BaseTeacher
from opu.teachers.modes import changing, evaluating
from opu.teachers.outputs import ONE_OUTPUT


def laplace(net: nn.Module, x: Tensor, labels: Int64[Tensor, " N"], *, batch_size: int = 2048) -> "LaplaceLastLayer":
    """A Kronecker-factored posterior of a network's last layer given labelled data, as a teacher.

    The precision of the prior maximises the marginal likelihood.

    Args:
        net: A trained classifier that gives logits.
        x: Its training inputs.
        labels: Classes of the inputs, ``0 .. K-1``.
        batch_size: Number of inputs per pass.
    """
    package = optional("laplace", "a last-layer Laplace approximation", "laplace")
    with evaluating(net):
        outputs = net(x[:1].to(device_of(net, x)))
    if outputs.ndim < 2 or outputs.shape[1] < 2:
        raise ValueError(
            ONE_OUTPUT.format(type(net).__name__, "give laplace a network that returns the two logits 0 and z")
        )
    posterior = package.Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="kron")
    posterior.fit(DataLoader(TensorDataset(x, labels), batch_size=batch_size))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a link that the marginal likelihood does not use
        posterior.optimize_prior_precision(method="marglik")
    return LaplaceLastLayer(net, posterior)


class LaplaceLastLayer(BaseTeacher):
    """A network whose last layer has a Gaussian posterior, as a teacher: its logits are Gaussian.

    Args:
        net: The network, as it was trained.
        posterior: Fitted last-layer posterior of laplace-torch.
    """

    def __init__(self, net: nn.Module, posterior: Any) -> None:
        self.net, self.posterior = net, posterior

    @property
    def num_parameters(self) -> int:
        """Number of weights of the network and of entries of the posterior's factors."""
        factors = self.posterior.H
        blocks: list[list[Tensor]] = [*factors.eigenvectors, *factors.eigenvalues]
        return sum(p.numel() for p in self.net.parameters()) + sum(side.numel() for block in blocks for side in block)

    def network(self) -> nn.Module:
        """The network itself, whose weights are the posterior's mean."""
        return self.net

    def logits(self, x: Tensor) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K K"]]:
        """Mean and covariance of the logits."""
        with changing(self.net), evaluating(self.net):  # the package keeps the features of the last call
            mean, covariance = self.posterior._glm_predictive_distribution(x.to(device_of(self.net, x)))
        return mean.detach().double(), covariance.detach().double()

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities of logits that are drawn jointly for each input."""
        check_at_least(1, num_particles=num_particles)
        mean, covariance = self.logits(x)
        jitter = 1e-9 * torch.eye(mean.shape[-1], dtype=torch.float64, device=mean.device)
        root = torch.linalg.cholesky(covariance + jitter)
        noise = torch.randn(num_particles, *mean.shape, dtype=torch.float64, device=mean.device)
        logits: Tensor = mean + torch.einsum("bij,sbj->sbi", root, noise)
        return logits.log_softmax(-1).float()
