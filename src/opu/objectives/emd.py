"""The earth mover's distance by a critic that sees the input, as in the paper."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from opu.batches import Batch, tensors
from opu.distributions import SimplexDistribution
from opu.objectives.base import BaseObjective


class Critic(nn.Module):
    """One critic for every input: NN1 reads ``x``, NN2 reads a point on the simplex, NN3 reads both.

    The first layer of NN3 is stored as two blocks, one for the features of ``x`` and one for those of the point, so that
    the first block is applied once per input and not once per particle.
    """

    def __init__(self, num_features: int, num_classes: int, hidden: int = 256, x_net: nn.Module | None = None) -> None:
        super().__init__()
        self.on_x = x_net or nn.Sequential(nn.Flatten(), nn.Linear(num_features, hidden), nn.ReLU())
        self.on_point = nn.Sequential(nn.Linear(num_classes, hidden), nn.ReLU())
        self.mix_x = nn.Linear(hidden, hidden)
        self.mix_point = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x: Tensor, points: Float[Tensor, "S B K"]) -> Float[Tensor, "S B"]:
        """The critic's score of each point."""
        hidden: Tensor = self.mix_x(self.on_x(x)) + self.mix_point(self.on_point(points))
        score: Tensor = self.score(hidden)
        return score.squeeze(-1)


class CriticEMD(BaseObjective):
    r"""Kantorovich-Rubinstein estimate :math:`E_{p_x}\psi(\pi; x) - E_{q_x}\psi(\pi; x)` with a learned critic.

    The critic and its optimiser are built at the first call, when the shapes are known. While gradients are enabled, each
    call first trains the critic for ``critic_steps`` steps with a gradient penalty. The penalty uses the gradient along
    the simplex, since the direction out of it changes no distance between distributions. It is one-sided: slopes below 1
    are not penalised. The usual two-sided penalty drives a random initial slope to plus or minus 1, and the critic may
    then keep the wrong sign.

    Args:
        critic_steps: Number of critic updates per step of the student.
        penalty: Weight of the gradient penalty.
        learning_rate: Learning rate of the critic's Adam.
        num_samples: Number of draws from the student per input; by default the number of particles.
        hidden: Width of the critic's layers.
    """

    def __init__(
        self,
        critic_steps: int = 5,
        penalty: float = 10.0,
        learning_rate: float = 1e-3,
        num_samples: int | None = None,
        hidden: int = 256,
    ) -> None:
        self.critic_steps, self.penalty, self.learning_rate = critic_steps, penalty, learning_rate
        self.num_samples, self.hidden = num_samples, hidden
        self.critic: Critic | None = None
        self.optimizer: Optimizer | None = None
        self._shape: tuple[int, int] | None = None

    def __call__(self, x: Batch, log_particles: Float[Tensor, "S B K"], q: SimplexDistribution) -> Float[Tensor, " B"]:
        """One value per input; if gradients are enabled, the critic is trained first."""
        particles = log_particles.detach().exp().to(q.mean)
        num_samples = self.num_samples or len(particles)
        x = _rows(x).to(q.mean)
        critic, optimizer = self._ready(x.shape[1:].numel(), q.num_classes, q.mean)
        if torch.is_grad_enabled() and len(x):
            for _ in range(self.critic_steps):
                self._step(critic, optimizer, x, particles, q.detach().rsample(num_samples))
        critic.requires_grad_(False)
        gap: Tensor = critic(x, particles).mean(0) - critic(x, q.rsample(num_samples)).mean(0)
        critic.requires_grad_(True)
        return gap

    def _ready(self, num_features: int, num_classes: int, like: Tensor) -> tuple[Critic, Optimizer]:
        """The critic and its optimiser: built at the first call, moved if a checkpoint was loaded on another device."""
        if self.critic is None:
            self._shape = (num_features, num_classes)
            self.critic = Critic(num_features, num_classes, self.hidden)
        elif self._shape is not None and num_features != self._shape[0]:
            raise ValueError(
                f"the critic of emd reads inputs of one size; it has seen {self._shape[0]} numbers per input, and now got "
                f"{num_features}. For sequences of several lengths use another objective, such as mmd."
            )
        optimizer = self.optimizer
        if optimizer is None or next(self.critic.parameters()).device != like.device:
            weights = self.critic.to(like).parameters()
            moved = Adam(weights, self.learning_rate, betas=(0.5, 0.9), capturable=like.is_cuda)
            if optimizer is not None:
                groups = moved.state_dict()["param_groups"]
                moved.load_state_dict({"state": optimizer.state_dict()["state"], "param_groups": groups})
            self.optimizer = optimizer = moved
        return self.critic, optimizer

    def _step(self, critic: Critic, optimizer: Optimizer, x: Tensor, particles: Tensor, samples: Tensor) -> None:
        gap = critic(x, particles).mean() - critic(x, samples).mean()
        loss = self.penalty * _gradient_penalty(critic, x, particles, samples) - gap
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The critic, its optimiser, and the numbers of features and classes."""
        if self.critic is None or self.optimizer is None or self._shape is None:
            return {}
        critic, optimizer = dict(self.critic.state_dict()), self.optimizer.state_dict()
        return {"shape": list(self._shape), "critic": critic, "optimizer": optimizer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        if state:
            num_features, num_classes = state["shape"]
            critic, optimizer = self._ready(num_features, num_classes, next(iter(state["critic"].values())))
            critic.load_state_dict(state["critic"])
            optimizer.load_state_dict(state["optimizer"])

    def __repr__(self) -> str:
        return f"CriticEMD(critic_steps={self.critic_steps}, penalty={self.penalty:g})"


def _rows(x: Batch) -> Tensor:
    """What the critic reads of an input: a tensor as it is, and all numbers of an input of several parts."""
    return x if isinstance(x, Tensor) else torch.cat([t.reshape(len(t), -1) for t in tensors(x).values()], 1)


def _gradient_penalty(critic: Critic, x: Tensor, particles: Tensor, samples: Tensor) -> Tensor:
    count = min(len(particles), len(samples))
    mix = torch.rand_like(particles[:count, :, :1])
    between = (mix * particles[:count] + (1 - mix) * samples[:count]).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(x, between).sum(), between, create_graph=True)
    along_simplex = gradient - gradient.mean(-1, keepdim=True)
    length: Tensor = (along_simplex.square().sum(-1) + 1e-12).sqrt()
    return (length - 1).clamp(min=0).square().mean()
