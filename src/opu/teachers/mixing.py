"""How well chains have mixed: effective sample sizes and split R-hat."""

import torch
from jaxtyping import Float
from torch import Tensor


def effective_sample_size(chains: Float[Tensor, "C S N"]) -> Float[Tensor, " N"]:
    """How many independent draws know as much of the mean, by Geyer's initial monotone sequence.

    Args:
        chains: One or several chains of ``N`` quantities.

    Returns:
        One number for each quantity, at most ``C S log10(C S)``.
    """
    num_chains, num_draws, _ = chains.shape
    total = num_chains * num_draws
    covariance = _autocovariance(chains.double()).mean(0)
    within = covariance[0] * num_draws / (num_draws - 1)
    spread = covariance[0] + (chains.double().mean(1).var(0) if num_chains > 1 else 0.0)
    correlation = 1 - (within - covariance) / spread.clamp(min=1e-300)
    correlation[0] = 1.0
    # Sums of neighbouring pairs are positive and falling in theory; where they are not, noise has taken over.
    pairs = correlation[: num_draws // 2 * 2].reshape(num_draws // 2, 2, -1).sum(1)
    positive = (pairs > 0).long().cumprod(0)
    time = -1 + 2 * (pairs.cummin(0).values * positive).sum(0)
    most = total * torch.tensor(float(total)).log10().clamp(min=1.0)
    size = (total / time.clamp(min=1e-12)).clamp(max=float(most))
    return torch.where(spread > 0, size, torch.full_like(size, float(total)))


def split_r_hat(chains: Float[Tensor, "C S N"]) -> Float[Tensor, " N"]:
    """The spread of all half chains together over the spread within them: 1 where they agree."""
    half = chains.shape[1] // 2
    halves = torch.cat([chains[:, :half], chains[:, -half:]]).double()
    within = halves.var(1).mean(0)
    between = halves.mean(1).var(0)
    ratio = ((half - 1) / half + between / within.clamp(min=1e-300)).sqrt()
    return torch.where(within > 0, ratio, torch.ones_like(ratio))


def _autocovariance(chains: Float[Tensor, "C S N"]) -> Float[Tensor, "C S N"]:
    num_draws = chains.shape[1]
    centred = chains - chains.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * num_draws, dim=1)
    lags: Tensor = torch.fft.irfft(spectrum.abs().square(), n=2 * num_draws, dim=1)
    return lags[:, :num_draws] / num_draws
