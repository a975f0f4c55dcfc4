r"""CompactApprox (Snelson and Ghahramani, 2005): a few posterior samples that together predict like very many.

Groups are drawn at random from a large pool, and the best one is kept: the one whose average prediction :math:`q` has the
smallest :math:`\mathrm{KL}(\bar p \,\|\, q)` from the pool's average :math:`\bar p`, averaged over the inputs. That is the
article's criterion. The paper takes the best of 10^5 groups of 50 out of 5,000 and leaves the criterion open.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from opu.checks import check_inputs
from opu.teachers import LogisticSamples

_RANK = 128  # directions in which a group's prediction may miss the pool's
_RAREST = 1e-3  # a class less likely than this weighs no more: there the second order overstates the KL
_FINALISTS = 256
_GROUPS_AT_ONCE = 8192


def compact_approximation(
    pool: LogisticSamples,
    x: Float[Tensor, "N F"],
    *,
    group_size: int = 50,
    num_groups: int = 100_000,
    memory_budget: int = 2**28,
) -> LogisticSamples:
    """The best group of a pool of posterior samples, as a teacher.

    Args:
        pool: Many posterior samples; the paper takes 5,000.
        x: Training inputs, at which predictions are compared.
        group_size: Number of samples to keep.
        num_groups: Number of groups to compare.
        memory_budget: Bytes that the pool's predictions may take; three copies are made on the way. If they would take
            more, they are compared at fewer inputs, evenly spread.
    """
    check_inputs(x)
    most = max(1, memory_budget // (4 * pool.num_samples * pool.num_classes))
    rows = torch.linspace(0, len(x) - 1, min(most, len(x))).round().long()
    return pool.take(best_group(pool(x[rows], pool.num_samples), group_size, num_groups))


def best_group(
    log_particles: Float[Tensor, "S B K"], group_size: int = 50, num_groups: int = 100_000
) -> Int64[Tensor, " group_size"]:
    r"""Which samples of a pool make the best of many random groups, in ascending order.

    To second order the KL is a sum of squares, :math:`\sum_k (\bar p_k - q_k)^2 / 2\bar p_k`. Written in the few
    directions in which the pool's predictions vary, it ranks all groups in no time; the exact KL then decides among the
    256 best.
    """
    total = len(log_particles)
    if not 1 <= group_size <= total or num_groups < 1:
        raise ValueError(
            f"a group needs 1 to {total} samples, as many as the pool has, and at least one group must be tried; got "
            f"group_size={group_size} and num_groups={num_groups}."
        )
    probabilities = log_particles.exp().flatten(1)
    average = probabilities.mean(0)
    directions = _main_directions((probabilities - average).div_(average.clamp(min=_RAREST).sqrt()))
    groups = _random_groups(total, group_size, num_groups).to(log_particles.device)
    means = (torch.nn.functional.embedding_bag(part, directions, mode="mean") for part in groups.split(_GROUPS_AT_ONCE))
    misses = torch.cat([mean.square().sum(-1) for mean in means])
    finalists = groups[misses.topk(min(_FINALISTS, num_groups), largest=False).indices]
    exact = torch.stack([_divergence(average, probabilities[group].mean(0)) for group in finalists])
    return finalists[exact.argmin()].sort().values


def _divergence(p: Float[Tensor, " D"], q: Float[Tensor, " D"]) -> Float[Tensor, ""]:
    least = torch.finfo(p.dtype).tiny  # a probability that has underflowed counts as the smallest there is
    return (p * (p.clamp(min=least) / q.clamp(min=least)).log()).double().sum()


def _main_directions(deviations: Float[Tensor, "S D"]) -> Float[Tensor, "S R"]:
    """Coordinates of each row among the strongest directions; squared lengths of sums of rows hardly change."""
    left, strengths, _ = torch.svd_lowrank(deviations, q=min(_RANK, *deviations.shape), niter=2)
    return left * strengths


def _random_groups(total: int, group_size: int, num_groups: int) -> Int64[Tensor, "G group_size"]:
    """Random choices without repetition: a shuffled pool is cut into as many groups as it holds, again and again."""
    each = total // group_size

    def shuffles() -> Iterator[Tensor]:
        for _ in range(-(-num_groups // each)):
            yield torch.randperm(total)[: each * group_size].view(each, group_size)

    return torch.cat(list(shuffles()))[:num_groups]
