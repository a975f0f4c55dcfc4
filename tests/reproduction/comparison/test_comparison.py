"""The comparison: known values for each method's own part, the small run as a user meets it, and its table by hand."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from laplace import Laplace
from rich.console import Console
from scipy.stats import multivariate_normal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from opu.teachers import LaplaceLastLayer
from reproduction.commands import compare
from reproduction.comparison.bounded import BoundedSpectralNorm, with_bounded_layers, without_bounds
from reproduction.comparison.deep import JITTERS, DensityOfFeatures, RandomFeaturesGP
from reproduction.comparison.laplace_bridge import bridge
from reproduction.comparison.methods import METHODS, best_temperature
from reproduction.comparison.run import run_comparison
from reproduction.comparison.summary import SETS, comparison_table, show
from reproduction.paper.reproduce import QUICK


@pytest.fixture
def labelled():
    x = torch.randn(300, 4)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


@pytest.fixture
def network(labelled):
    x, labels = labelled
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(200):
        loss = nn.functional.cross_entropy(net(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def test_temperature_undoes_a_scale_that_was_put_on_the_logits():
    logits = 1.5 * torch.randn(20_000, 3)
    labels = torch.distributions.Categorical(logits=logits).sample()
    assert best_temperature(4 * logits, labels) == pytest.approx(4, rel=0.05)
    assert best_temperature(logits / 3, labels) == pytest.approx(1 / 3, rel=0.05)


@pytest.mark.parametrize("link", ["bridge", "bridge_norm"])
def test_the_bridge_has_the_mean_that_laplace_torch_gives(link, network, labelled):
    x, labels = labelled
    posterior = Laplace(network, "classification", subset_of_weights="last_layer", hessian_structure="kron")
    posterior.fit(DataLoader(TensorDataset(x, labels), batch_size=100))
    mean, covariance = LaplaceLastLayer(network, posterior).logits(x[:20])
    q = bridge(mean, covariance, normed=link == "bridge_norm")
    theirs = posterior(x[:20], pred_type="glm", link_approx=link)
    torch.testing.assert_close(q.mean.float(), theirs.detach(), atol=1e-4, rtol=1e-3)
    assert torch.isfinite(bridge(500 * mean, covariance, normed=False).log_precision).all()


def test_the_plain_bridge_is_sharper_where_logits_are_surer():
    mean, covariance = torch.tensor([[2.0, 0.0, -2.0]]), torch.eye(3)[None]
    sharp, blunt = (bridge(mean, scale * covariance, normed=False).log_precision for scale in (0.01, 1.0))
    torch.testing.assert_close(sharp - blunt, torch.full((1,), math.log(100)).double())


def test_the_feature_distance_is_minus_the_log_density_of_a_mixture(network, labelled):
    x, labels = labelled
    held_out = torch.randn(80, 4)
    model = DensityOfFeatures(network, x, labels, 3, held_out)
    logits, distance = model(x[:10])
    torch.testing.assert_close(logits, network(x[:10]))
    features, fresh = (network[:-1](part).detach().double().numpy() for part in (x, held_out))
    average = np.mean([np.cov(features[labels == k].T).diagonal() for k in range(3)])

    def density(places, jitter):
        total = np.zeros(len(places))
        for k in range(3):
            part = features[labels == k]
            law = multivariate_normal(part.mean(0), np.cov(part.T) + jitter * average * np.eye(8))
            total += len(part) / 300 * law.pdf(places) * (2 * math.pi) ** 4  # the constant is left out
        return total

    # What is added to every variance is what suits held-out inputs.
    best = max(JITTERS, key=lambda jitter: np.log(density(fresh, jitter)).mean())
    np.testing.assert_allclose(distance.detach().numpy(), -np.log(density(features[:10], best)), rtol=1e-4)
    assert float(model(30 + x)[1].detach().min()) > float(distance.detach().max())


def test_a_bounded_layer_stays_within_its_bound_and_smaller_ones_are_left_alone():
    weight = 3 * torch.randn(20, 30)
    bounded = BoundedSpectralNorm(weight, 2.0)
    for _ in range(200):
        scaled = bounded(weight)
    assert float(torch.linalg.matrix_norm(scaled, 2)) == pytest.approx(2.0, rel=1e-3)
    small = weight / 1000
    torch.testing.assert_close(bounded(small), small)
    net = with_bounded_layers(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    assert nn.utils.parametrize.is_parametrized(net[0])
    assert not nn.utils.parametrize.is_parametrized(net[2])
    x = torch.randn(5, 4)
    before = net.eval()(x)
    without_bounds(net)
    assert not nn.utils.parametrize.is_parametrized(net[0])
    torch.testing.assert_close(net(x), before)


def test_random_features_are_a_gaussian_kernel_and_the_process_is_unsure_far_away():
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
    nn.init.eye_(net[0].weight)
    nn.init.zeros_(net[0].bias)
    model = RandomFeaturesGP(net, 2, length=2.0, num_features=4000).eval()
    x = torch.randn(5, 6)
    random_features, normed = model.random_features(x), model.norm(x)
    expected = torch.exp(-torch.cdist(normed, normed).square() / (2 * 2.0**2))
    torch.testing.assert_close(random_features @ random_features.T, expected, atol=0.07, rtol=0)

    model = RandomFeaturesGP(net, 2, length=1.0, num_features=256).eval()
    nn.init.normal_(model.head.weight)
    base = torch.randn(6)
    near, far = base + 0.01 * torch.randn(2000, 6), -base.expand(5, 6)

    def kept(x):
        """By how much a logit is shrunk."""
        return (model(x)[0] / model.head(model.random_features(x))).detach()

    before = kept(near[:5]), kept(far)
    torch.testing.assert_close(before[0], torch.full_like(before[0], (1 + math.pi / 8) ** -0.5), atol=0.05, rtol=0)
    model.settle(near, near[:50], torch.zeros(50, dtype=torch.int64))
    model.factor = math.pi / 8
    assert (kept(near[:5]) > before[0] + 0.05).all()  # data make logits count for more, and only near by
    torch.testing.assert_close(kept(far), before[1], atol=0.03, rtol=0)


@pytest.mark.long
def test_the_small_comparison_runs_every_method_and_goes_on(data_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPU_DATA", str(data_folder))
    monkeypatch.setitem(QUICK, "mnist", replace(QUICK["mnist"], teacher_epochs=6))
    compare(tmp_path, [0], [], "cpu", True)
    assert "1 seed." in capsys.readouterr().out
    record = json.loads((tmp_path / "comparison-quick-seed0.json").read_text())
    assert [row["name"] for row in record["rows"]] == [method.name for method in METHODS]
    rows = {row["name"]: row for row in record["rows"]}
    for row in rows.values():
        assert row["accuracy"] > 85
        assert row["misclassification"][row["error_score"]]["auroc"] > 85
        assert set(row["ood"]) == set(SETS)
    assert rows["deep ensemble of 5 (MI)"]["nll"] < rows["one network (P)"]["nll"]
    assert rows["deep ensemble of 5 (MI)"]["num_parameters"] == 5 * rows["one network (P)"]["num_parameters"]
    assert rows["temperature scaling (E)"]["accuracy"] == rows["one network (P)"]["accuracy"]
    again = run_comparison(tmp_path, seeds=[0], device="cpu", quick=True, console=Console(file=io.StringIO()))
    assert again[0]["rows"] == record["rows"]
    monkeypatch.setitem(QUICK, "mnist", replace(QUICK["mnist"], teacher_epochs=5))
    with pytest.raises(ValueError, match=r"scale\.teacher_epochs was 6 and is 5 now"):
        run_comparison(tmp_path, seeds=[0], device="cpu", quick=True, console=Console(file=io.StringIO()))


def test_an_unknown_method_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no method has 'SWAG' in its name; they are one network "):
        run_comparison(tmp_path, seeds=[0], rows=["OPU", "SWAG"])


def row(name, auroc, seconds):
    cell = {"auroc": auroc, "aupr": 50.0, "fpr95": 10.0}
    return {
        "name": name, "error_score": "P", "ood_score": "N", "accuracy": 98.0, "nll": 0.1, "ece": 1.0, "test_seconds": seconds,
        "num_parameters": 1_500_000, "misclassification": {"P": cell}, "ood": {s: {"N": cell} for s in SETS},
    }  # fmt: skip


def test_the_table_can_be_worked_out_by_hand():
    trivial = {name: {"norm": 60.0, "mean": 70.0} for name in SETS}
    records = [
        {"rows": [row("a", 90.0, 0.001), row("b", 95.0, 0.01)], "trivial": trivial},
        {"rows": [row("a", 92.0, 0.003), row("b", 95.0, 0.01)], "trivial": trivial},
    ]
    header, lines = comparison_table(records)
    assert len({len(header), *map(len, lines)}) == 1
    assert lines[0][:5] == ["a", "98.0 ± 0.0", "0.100", "1.0 ± 0.0", "91.0 ± 1.4"]
    assert lines[0][-2:] == ["3 ms", "1.50 M"]
    assert lines[1][4:13] == ["**95.0 ± 0.0**"] * 9
    timed = comparison_table(records, {"a": 0.0005, "b": 0.002})[1]
    assert [line[-2] for line in timed] == ["0.5 ms", "2 ms", ""]
    assert lines[2] == ["best trivial detector", "", "", "", "", *["70.0 ± 0.0"] * 8, "", ""]
    text = io.StringIO()
    show(records, Console(file=text, width=110))
    assert "2 seeds." in text.getvalue()
    assert "**" not in text.getvalue()
