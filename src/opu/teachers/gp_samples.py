"""Posterior samples of a sparse Gaussian-process classifier, as a teacher."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from opu.files import read_state, write_state
from opu.teachers.base import BaseTeacher, choose
from opu.teachers.gp_kernel import check_rows, class_log_probabilities, rows_within, whitened_features


@dataclass(frozen=True)
class GPMixing:
    """How well a chain has mixed, judged by the functions' values at training inputs and by the hyperparameters.

    Attributes:
        acceptance: Acceptance rate of trajectories of the whitened values.
        hyper_acceptance: Acceptance rate of trajectories of the hyperparameters; 1 if those are fixed.
        logit_ess: Median effective sample size of the training logits.
        least_ess: Smallest effective sample size of training logits and hyperparameters.
        r_hat: Largest R-hat, from the halves of the chain.
    """

    acceptance: float
    hyper_acceptance: float
    logit_ess: float
    least_ess: float
    r_hat: float

    def complaint(self, num_samples: int) -> str | None:
        """One sentence about poor mixing, or None."""
        low = min(self.acceptance, self.hyper_acceptance)
        enough = self.logit_ess >= 0.1 * num_samples and self.least_ess >= 0.02 * num_samples
        if low >= 0.3 and enough and self.r_hat <= 1.2:
            return None
        return (
            f"the chain has mixed poorly (acceptance {low:.2f}, effective samples {self.logit_ess:.0f} of {num_samples} and "
            f"at least {self.least_ess:.0f}, R-hat {self.r_hat:.2f}): take a longer burn_in and a larger thinning."
        )


@dataclass(frozen=True, eq=False)
class GPSamples(BaseTeacher):
    """Posterior samples of a sparse Gaussian process, as a teacher.

    A particle is the function of one posterior sample, drawn from its Gaussian conditional at each input and sent through
    the link. Given the sample, draws at different inputs are independent: marginals are exact, joint paths are not drawn.

    Attributes:
        inducing: Inducing points.
        whitened: Samples of the whitened values there, for one function (two classes) or one per class.
        hyper: Samples of the log lengthscales and the log variance.
        mixing: How well the chain has mixed.
        memory_budget: Largest number of bytes for one chunk; samples, then rows, are chunked to fit.
    """

    inducing: Float[Tensor, "M D"]
    whitened: Float[Tensor, "S M C"]
    hyper: Float[Tensor, "S P"]
    mixing: GPMixing
    memory_budget: int = field(default=2**29, kw_only=True)

    @property
    def num_samples(self) -> int:
        """Number of posterior samples."""
        return len(self.whitened)

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities under a random subset of the samples, or under all of them."""
        x = check_rows(x, self.inducing.shape[1]).to(self.inducing.device)
        index = choose(self.num_samples, num_particles, x.device)
        (num_inducing, num_features), num_functions = self.inducing.shape, self.whitened.shape[-1]
        # All noise is drawn before chunking, so that the budget does not change the result.
        noise = torch.randn(len(index), len(x), num_functions, dtype=x.dtype, device=x.device)
        fixed, each = 8 * 4 * num_inducing**2, 8 * (4 * num_inducing + 2 * num_features + 4 * num_functions)
        rows = min(len(x), rows_within(self.memory_budget, each, fixed))
        samples = rows_within(self.memory_budget, fixed + rows * each)
        parts = [
            torch.cat([self._latents(x[r], i, noise[s][:, r]) for r in torch.arange(len(x)).split(rows)], 1)
            for s, i in zip(torch.arange(len(index)).split(samples), index.split(samples), strict=True)
        ]
        return class_log_probabilities(torch.cat(parts)).float()

    def _latents(self, x: Tensor, index: Tensor, noise: Tensor) -> Tensor:
        with torch.no_grad():
            features, variance = whitened_features(x, self.inducing, self.hyper[index])
            return features @ self.whitened[index] + variance.sqrt() * noise

    def save(self, path: str | Path) -> None:
        """Write all samples into one safetensors file."""
        tensors = {"inducing": self.inducing, "whitened": self.whitened, "hyper": self.hyper}
        write_state(Path(path), {"kind": "gp_samples", **tensors, "mixing": asdict(self.mixing)})

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> "GPSamples":
        """Read samples that :meth:`save` wrote."""
        state = read_state(Path(path))
        if state.get("kind") != "gp_samples":
            raise ValueError(
                f"{path} does not hold samples of a Gaussian process; give a file that GPSamples.save wrote."
            )
        return cls(state["inducing"], state["whitened"], state["hyper"], GPMixing(**state["mixing"]), **options)
