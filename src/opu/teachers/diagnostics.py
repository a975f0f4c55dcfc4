r"""Whether Markov chains have mixed: split R-hat and the effective sample size (Vehtari et al., 2021).

Every chain is cut into halves, so that a chain which drifts disagrees with itself. With :math:`m` halves of length
:math:`n`, mean within-chain variance :math:`W` and between-chain variance :math:`B`,

.. math:: \widehat{\mathrm{var}}^+ = \frac{n-1}{n} W + \frac{B}{n}, \qquad
          \hat R = \sqrt{\widehat{\mathrm{var}}^+ / W}, \qquad
          \mathrm{ESS} = \frac{mn}{-1 + 2\sum_k \hat P_k},

where :math:`\hat P_k = \hat\rho_{2k} + \hat\rho_{2k+1}` are sums of neighbouring autocorrelations, kept while they are
positive and never allowed to rise (Geyer, 1992). The draws are not rank-normalised: coefficients of a logistic regression
have finite variances, and a heavy-tailed quantity should be transformed first.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

Draws = Float[np.ndarray, "chains draws quantities"]
PerQuantity = Float[np.ndarray, " quantities"]

FEWEST_DRAWS = 4  # halves of two: one draw has no variance
_QUANTITIES_AT_ONCE = 256


@dataclass(frozen=True)
class Mixing:
    """How well chains have mixed, over many quantities.

    Attributes:
        min_ess: The smallest effective sample size.
        median_ess: The median effective sample size.
        max_r_hat: The largest split R-hat; 1 when all chains agree.
    """

    min_ess: float
    median_ess: float
    max_r_hat: float


def split_r_hat(draws: Draws) -> PerQuantity:
    """Split R-hat of each quantity: 1 if the chains agree, also if all draws are equal."""
    within, total = _variances(_halves(draws))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, np.sqrt(total / within), 1.0)


def effective_sample_size(draws: Draws) -> PerQuantity:
    r"""Number of independent draws that would estimate each quantity's mean with the same error.

    Negatively correlated draws are worth more than independent ones; as in the article, the size of :math:`S` draws is at
    most :math:`S\log_{10} S`. All draws of a quantity that never changes count.
    """
    halves, size = _halves(draws), _QUANTITIES_AT_ONCE
    return np.concatenate([_ess(halves[:, :, i : i + size]) for i in range(0, halves.shape[2], size)])


def mixing(parts: Iterable[Draws]) -> Mixing:
    """Mixing over all quantities, which may come in parts so that memory stays bounded."""
    sizes, ratios = zip(*[(effective_sample_size(part), split_r_hat(part)) for part in parts], strict=True)
    ess = np.concatenate(sizes)
    return Mixing(float(ess.min()), float(np.median(ess)), float(np.concatenate(ratios).max()))


def _halves(draws: NDArray[np.floating]) -> NDArray[np.float64]:
    length = draws.shape[1]
    if length < FEWEST_DRAWS or 0 in draws.shape:
        raise ValueError(
            f"chains need at least {FEWEST_DRAWS} draws each of at least one quantity to be compared; got shape "
            f"{draws.shape} for (chains, draws, quantities)."
        )
    if not np.isfinite(draws).all():
        raise ValueError("draws must be finite to be compared; got NaN or infinite ones. Check the sampler.")
    half = length // 2
    # The middle one of an odd number of draws is left out, so that the halves have equal lengths.
    return np.concatenate([draws[:, :half], draws[:, length - half :]]).astype(np.float64)


def _variances(halves: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    length = halves.shape[1]
    within = halves.var(axis=1, ddof=1).mean(0)
    between = halves.mean(1).var(axis=0, ddof=1)  # B / n
    # Rounding gives equal numbers a variance of about 1e-32 times their square, which counts as 0.
    nothing = 1e-28 * np.square(halves).mean((0, 1))
    within, between = (np.where(v > nothing, v, 0.0) for v in (within, between))
    return within, within * (length - 1) / length + between


def _ess(halves: NDArray[np.float64]) -> NDArray[np.float64]:
    chains, length, _ = halves.shape
    within, total = _variances(halves)
    varies = total > 0
    padded = next_fast_len(2 * length, real=True)  # without padding the convolution would be circular
    spectrum = rfft(halves - halves.mean(1, keepdims=True), padded, axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    covariance = (irfft(power, padded, axis=1)[:, :length] / length).mean(0)
    correlation = 1 - (within - covariance) / np.where(varies, total, 1.0)
    correlation[0] = 1.0
    even = length - length % 2
    pairs = correlation[0:even:2] + correlation[1:even:2]
    kept = np.logical_and.accumulate(pairs > 0, axis=0)
    time = -1 + 2 * np.where(kept, np.minimum.accumulate(pairs, axis=0), 0.0).sum(0)
    count = chains * length
    return np.where(varies, count / np.maximum(time, 1 / np.log10(count)), float(count))
