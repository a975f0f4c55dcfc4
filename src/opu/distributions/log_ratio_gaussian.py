r"""The Gaussian of log-ratios in a form without cancellation: a basis of what its density does not charge for.

The density of a residual :math:`r` of log-ratios, in units of the scales :math:`s`, charges for the distance of
:math:`(r/s, 0)` from the space of all :math:`(W z + t\,u/s,\; z)`: what the factors :math:`W = U/s` explain costs their
coefficients :math:`z`, and a part that all classes share costs nothing. The spanning vectors are made orthonormal by
Gram and Schmidt's method. Matrices of their products, such as :math:`I + W^\top W`, are never formed: with factors a
million times as large as the scales they would lose all digits.
"""

import math

import torch
from jaxtyping import Float64
from torch import Tensor


def spanning_vectors(
    log_scale: Float64[Tensor, "*B K"], factors: Float64[Tensor, "*B K R"]
) -> Float64[Tensor, "*B J K+R"]:
    """One vector for each factor, and one for what all classes share."""
    num_classes, rank = factors.shape[-2:]
    inverse_scale = torch.exp(-log_scale).unsqueeze(-2)
    # Centred, since a part that all classes share would take digits and says nothing.
    explained = (factors - factors.mean(-2, keepdim=True)).mT * inverse_scale
    vectors = torch.cat([explained, inverse_scale / math.sqrt(num_classes)], -2)
    cost = torch.eye(rank + 1, rank, dtype=vectors.dtype, device=vectors.device)
    return torch.cat([vectors, cost.expand(*vectors.shape[:-1], rank)], -1)


def orthonormal(vectors: Float64[Tensor, "*B J D"]) -> tuple[Float64[Tensor, "*B J D"], Float64[Tensor, "*B"]]:
    """An orthonormal basis of the space that vectors span, and the logarithm of the volume between them."""
    found, log_volume = [], torch.zeros_like(vectors[..., 0, 0])
    for _ in range(vectors.shape[-2]):
        first, rest = vectors[..., :1, :], vectors[..., 1:, :]
        length = first.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-300)
        found.append(first / length)
        log_volume = log_volume + length[..., 0, 0].log()
        vectors = rest - (rest * found[-1]).sum(-1, keepdim=True) * found[-1]
    return torch.cat(found, -2), log_volume


def squared_distance(residual: Float64[Tensor, "*S K"], basis: Float64[Tensor, "*B J D"]) -> Float64[Tensor, "*S"]:
    """Squared distances of residuals, in units of the scales, from the space of a basis; more axes may come first."""
    away = torch.nn.functional.pad(residual, (0, basis.shape[-1] - residual.shape[-1]))
    for _ in range(2):  # the second time takes out what rounding left
        away = away - torch.einsum("...j,...jd->...d", torch.einsum("...d,...jd->...j", away, basis), basis)
    return away.square().sum(-1)
