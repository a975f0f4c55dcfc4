r"""Posterior samples of a logistic regression, from our own sampler or any other, as a teacher.

Two classes have one logit, :math:`\pi = (\sigma(-\psi), \sigma(\psi))`. More classes use a broken stick: :math:`\psi_k` is
the logit of being above class ``k`` for a row of class ``k`` or above, so that
:math:`\pi_k = \sigma(-\psi_k)\prod_{j<k}\sigma(\psi_j)`, and the last class has the rest.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid

from opu.files import read_state, write_state
from opu.teachers.base import BaseTeacher, choose
from opu.teachers.diagnostics import Mixing

KIND, FORMAT = "opu logistic samples", 1


@dataclass(frozen=True)
class LogisticSamples(BaseTeacher):
    """Coefficients of many logistic regressions, as a teacher: one matrix product evaluates all of them.

    Attributes:
        coefficients: Coefficients of each sample and logit, ``(S, K - 1, F)``.
        intercepts: Intercepts of each sample and logit, ``(S, K - 1)``.
        diagnostics: Mixing of the ``"coefficients"`` and of the ``"logits"`` of training rows, if known.
    """

    coefficients: Tensor
    intercepts: Tensor
    diagnostics: Mapping[str, Mixing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = tuple(self.coefficients.shape)
        if len(shape) != 3 or 0 in shape or tuple(self.intercepts.shape) != shape[:2]:
            raise ValueError(
                "coefficients must have shape (S, K - 1, F) and intercepts (S, K - 1), with at least one of each; got "
                f"{shape} and {tuple(self.intercepts.shape)}. Two classes have one logit: K - 1 = 1."
            )
        if not bool(torch.isfinite(self.coefficients).all() and torch.isfinite(self.intercepts).all()):
            raise ValueError("coefficients and intercepts must be finite; got NaN or infinite ones. Check the sampler.")

    @property
    def num_samples(self) -> int:
        """Number of samples, S."""
        return len(self.coefficients)

    @property
    def num_classes(self) -> int:
        """Number of classes, K."""
        return self.coefficients.shape[1] + 1

    def __call__(self, x: Tensor, num_particles: int) -> Float[Tensor, "S B K"]:
        """Log-probabilities under a random subset of the samples, or all of them; in float32, on the samples' device."""
        num_features = self.coefficients.shape[2]
        if x.ndim != 2 or x.shape[1] != num_features:
            raise ValueError(
                f"a logistic regression on {num_features} features needs rows of shape (B, {num_features}); got "
                f"{tuple(x.shape)}. Give the features that it was fitted to, scaled alike."
            )
        index = choose(self.num_samples, num_particles, self.coefficients.device)
        with torch.no_grad():
            weights = self.coefficients[index].float()
            logits = x.to(weights) @ weights.flatten(0, 1).T
            logits = logits.unflatten(1, weights.shape[:2]).transpose(0, 1) + self.intercepts[index].float()[:, None]
            return broken_stick(logits)

    def take(self, index: Int64[Tensor, " S"]) -> "LogisticSamples":
        """Some of the samples, as a teacher without diagnostics."""
        return replace(self, coefficients=self.coefficients[index], intercepts=self.intercepts[index], diagnostics={})

    def to(self, device: torch.device | str) -> "LogisticSamples":
        """The same samples on another device, where particles are then computed."""
        return replace(self, coefficients=self.coefficients.to(device), intercepts=self.intercepts.to(device))

    def save(self, path: str | Path) -> None:
        """Write all samples and their diagnostics into one safetensors file."""
        state = {
            "kind": KIND,
            "format": FORMAT,
            "coefficients": self.coefficients,
            "intercepts": self.intercepts,
            "diagnostics": {name: asdict(found) for name, found in self.diagnostics.items()},
        }
        write_state(Path(path), state)

    @classmethod
    def load(cls, path: str | Path) -> "LogisticSamples":
        """Read samples that :meth:`save` wrote."""
        try:
            state = read_state(Path(path))
        except OSError as error:
            raise ValueError(f"there are no samples to read at {path}; give the path of save().") from error
        if (state.get("kind"), state.get("format")) != (KIND, FORMAT):
            raise ValueError(
                f"{path} is of kind {state.get('kind')!r}, version {state.get('format')!r}; this release reads {KIND!r}, "
                f"version {FORMAT}. Sample again, or use the release that wrote it."
            )
        found = {name: Mixing(**values) for name, values in state["diagnostics"].items()}
        return cls(state["coefficients"], state["intercepts"], found)


def broken_stick(logits: Float[Tensor, "S B L"]) -> Float[Tensor, "S B L+1"]:
    """Log-probabilities of all ``K = L + 1`` classes; each logit takes a fraction of what those before it have left."""
    left = logsigmoid(logits).cumsum(-1)
    first = torch.zeros_like(left[..., :1])
    pieces = torch.cat([first, left[..., :-1]], -1) + logsigmoid(-logits)
    return torch.cat([pieces, left[..., -1:]], -1)
