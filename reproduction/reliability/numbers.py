"""Attacks on the numbers themselves, beside ones with fifty digits."""

import math

import torch
from mpmath.ctx_mp import MPContext
from torch import Tensor

import opu
from opu import measures
from opu.distributions.dirichlet import Dirichlet, kl_divergence
from reproduction.reliability.attack import Outcome, logistic_normals

_TOLERANCE = 1e-5
mp = MPContext()


def entropies() -> list[Outcome]:
    """D and the entropy of the mean at all precisions, in float64 and next to a corner in float32."""
    mp.dps = 400
    cases = broken = 0
    for g in (-20.0, 0.0, 14.0, 20.0, 26.0, 33.0, 40.0, 100.0, 400.0, 710.0, 750.0):
        for mean in ([0.5, 0.3, 0.2], [0.9, 0.09, 0.01], [0.25] * 4):
            q = Dirichlet(torch.tensor([mean]).double(), torch.tensor([g]).double())
            alpha = [mp.exp(mp.mpf(g)) * mp.mpf(h) for h in q.mean[0].tolist()]
            total = mp.fsum(alpha)
            beta = mp.fsum(mp.loggamma(a) for a in alpha) - mp.loggamma(total)
            exact = beta + (total - len(alpha)) * mp.digamma(total) - mp.fsum((a - 1) * mp.digamma(a) for a in alpha)
            cases, broken = cases + 1, broken + _off(q.entropy().item(), float(exact))
    for rest in (1e-3, 1e-6, 1e-9, 1e-12):
        logits = torch.tensor([[0.0, math.log(rest)]])
        exact = -float(mp.log1p(-mp.mpf(rest)) * (1 - mp.mpf(rest))) - rest * math.log(rest)
        q = Dirichlet.from_logits(logits, torch.tensor([3.0]))
        cases, broken = cases + 1, broken + _off(measures.predictive_entropy(q).item(), exact, 1e-3)
    return [Outcome("entropies agree with four hundred digits", cases, broken)]


def divergences() -> list[Outcome]:
    """KL of Dirichlets that are nearly equal."""
    mp.dps = 60
    cases = broken = 0
    for g in (0.0, 5.0, 10.0, 15.0):
        for step in (1e-2, 1e-4, 1e-6):
            p = torch.tensor([[0.5, 0.3, 0.2]]).double() * math.exp(g)
            q = p * (1 + step * torch.tensor([[1.0, -1.0, 0.5]]).double())
            a, b = ([mp.mpf(v) for v in each[0].tolist()] for each in (p, q))
            exact = mp.fsum(mp.loggamma(v) for v in b) - mp.loggamma(mp.fsum(b))
            exact -= mp.fsum(mp.loggamma(v) for v in a) - mp.loggamma(mp.fsum(a))
            exact += mp.fsum((u - v) * (mp.digamma(u) - mp.digamma(mp.fsum(a))) for u, v in zip(a, b, strict=True))
            found = kl_divergence(Dirichlet.from_concentration(p), Dirichlet.from_concentration(q)).item()
            cases, broken = cases + 1, broken + _off(found, float(exact), 1e-3)
    return [Outcome("KL of nearly equal Dirichlets agrees with sixty digits", cases, broken)]


def kernels() -> list[Outcome]:
    """The exact MMD of two Dirichlets with one mean sees their precisions, at every temperature that is accepted."""
    cases = broken = 0
    for temperature in (0.1, 0.5, 10.0, 1e3, 1e4, 3e4, 1e5):
        try:
            series = opu.distributions.kernels.Exponential(temperature).power_series()
        except ValueError:  # refused
            continue
        cases, broken = cases + 1, broken + int(len(series) < 3)
    return [Outcome("the exponential kernel sees more than the mean", cases, broken)]


def densities() -> list[Outcome]:
    """Densities of log-ratios, with factors up to ten million times the scales, of which some are equal."""
    family = logistic_normals()
    if family is None:
        return []
    cases = broken = 0
    for log_scale, size in ((0.0, 1.0), (-6.0, 30.0), (-8.0, 100.0), (-10.0, 1e3), (5.0, 1e-3)):
        for num_classes in (2, 5, 10):
            for rank in (0, 1, 2, 4):
                location = torch.randn(2, num_classes).double()
                scales = log_scale + 0.3 * torch.randn(2, num_classes).double()
                factors = size * torch.randn(2, num_classes, rank).double()
                factors[1] = factors[1, :, :1]  # all the same
                points = family(location, scales, factors).log_rsample(1)[0]
                found = family(location, scales, factors).log_ratio_log_prob(points)
                for given in zip(location, scales, factors, points, found, strict=True):
                    cases, broken = cases + 1, broken + _off(float(given[-1]), _log_density(*given[:-1]))
    return [Outcome("densities of logistic-normals' log-ratios agree with eighty digits", cases, broken)]


def _log_density(location: Tensor, log_scale: Tensor, factors: Tensor, point: Tensor) -> float:
    """The log-density of centred log-ratios, by the covariance of differences to the last class in 80 digits."""
    mp.dps = 80
    number, last = len(location), len(location) - 1
    m, logs = (mp.matrix(each.tolist()) for each in (location, point))
    full = mp.diag([mp.exp(2 * mp.mpf(each)) for each in log_scale.tolist()])
    for factor in factors.T.tolist():
        full += mp.matrix(factor) * mp.matrix(factor).T
    differences = mp.matrix(last, number)
    for i in range(last):
        differences[i, i], differences[i, last] = 1, -1
    covariance, away = differences * full * differences.T, differences * (logs - m)
    square = (away.T * mp.lu_solve(covariance, away))[0]
    gaussian = -(mp.log(mp.det(covariance)) + square + last * mp.log(2 * mp.pi)) / 2
    return float(gaussian + mp.log(number) / 2)  # differences to one class have a volume larger by the root of K


def information() -> list[Outcome]:
    """The mutual information of logistic-normals in float32, from spreads of exp(-10) to 1."""
    family = logistic_normals()
    if family is None:
        return []
    cases = broken = 0
    for log_scale in (-10.0, -8.0, -6.0, -4.0, -2.0, -1.0, 0.0):
        for num_classes in (2, 3, 10):
            location = 4 * torch.randn(100, num_classes)
            scales = log_scale + 0.2 * torch.randn(100, num_classes)
            q = family(location, scales, math.exp(log_scale) * torch.randn(100, num_classes, 2))
            pairs = zip(q.mutual_information().tolist(), q.to(torch.float64).mutual_information().tolist(), strict=True)
            off = [_off(found, exact, 1e-3) for found, exact in pairs]
            cases, broken = cases + len(off), broken + sum(off)
    return [Outcome("information of logistic-normals in float32 is that of float64", cases, broken)]


def _off(found: float, exact: float, tolerance: float = _TOLERANCE) -> int:
    return int(not abs(found - exact) <= tolerance * abs(exact))


ATTACKS = (entropies, divergences, kernels, densities, information)
