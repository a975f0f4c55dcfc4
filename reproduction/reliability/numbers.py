"""Attacks on the numbers themselves, beside ones with fifty digits."""

import math

import torch
from mpmath.ctx_mp import MPContext

import opu
from opu import measures
from opu.distributions.dirichlet import Dirichlet, kl_divergence
from reproduction.reliability.attack import Outcome

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


def _off(found: float, exact: float, tolerance: float = _TOLERANCE) -> int:
    return int(not abs(found - exact) <= tolerance * abs(exact))


ATTACKS = (entropies, divergences, kernels)
