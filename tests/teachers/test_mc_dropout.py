"""MC dropout against a slow loop of training-mode passes, and against the enumerated law of the masks."""

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from opu.checks import check_randomness
from opu.teachers import MCDropout
from opu.teachers.modes import bytes_per_row


class MyDropout(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.4, self.training)


class DropPath(nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        kept = torch.rand(len(x), *[1] * (x.ndim - 1)) < 0.7
        return x * kept / 0.7


class WrappedDropout(nn.Module):
    """A class of the user's around torch's own layer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Dropout(0.5)

    def forward(self, x):
        return self.inner(x)


class DropoutClassifier(nn.Module):
    """A whole network with dropout in its name."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)


class Skip(nn.Module):
    def __init__(self, drop: nn.Module):
        super().__init__()
        self.inner, self.drop, self.head = nn.Linear(4, 4), drop, nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x + self.drop(self.inner(x).relu()))


class Concatenated(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.cat([x, self.drop(x)], 1))


class UsedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.head = nn.Linear(4, 6), nn.Dropout(0.4), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.drop(self.drop(self.first(x)).relu()))


class ForItsEffect(nn.Module):
    """Dropout in place, whose output is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.head = nn.Linear(4, 6), nn.Dropout(0.5, inplace=True), nn.Linear(6, 3)

    def forward(self, x):
        z = self.first(x).relu()
        self.drop(z)
        return self.head(z)


class SequenceFirst(nn.Module):
    """Dropout on ``(L, B, D)``, as torch's recurrent and transformer layers have it by default."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.head = nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.drop(self.first(x.transpose(0, 1))).mean(0))


class FoldedTokens(nn.Module):
    """Dropout on ``(B * L, D)``."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.head = nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x):
        z = self.drop(self.first(x.flatten(0, 1)))
        return self.head(z.view(*x.shape[:2], -1).mean(1))


class Sequences(nn.Module):
    """An inner network over sequences ``(B, L, 4)``, then a linear head on the mean."""

    def __init__(self, inner: nn.Module, batch_first: bool = True):
        super().__init__()
        self.inner, self.head, self.batch_first = inner, nn.Linear(4, 3), batch_first

    def forward(self, x):
        z = x if self.batch_first else x.transpose(0, 1)
        z = self.inner(z, z, z) if isinstance(self.inner, nn.MultiheadAttention) else self.inner(z)
        z = z[0] if isinstance(z, tuple) else z
        return self.head(z.mean(1 if self.batch_first else 0))


def encoder_layer(batch_first: bool = True) -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.4, batch_first=batch_first)


def convolution(*tail: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), *tail, nn.Flatten(), nn.Linear(36, 3))


PLAIN = {
    "dropout": lambda: nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
    ),
    "at the input": lambda: nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 3)),
    "in place": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5, inplace=True), nn.Linear(8, 3)),
    "dropout1d": lambda: nn.Sequential(nn.Conv1d(5, 4, 2), nn.Dropout1d(0.5), nn.Flatten(), nn.Linear(12, 3)),
    "dropout2d": lambda: convolution(nn.Dropout2d(0.5), nn.ReLU()),
    "dropout3d": lambda: nn.Sequential(nn.Conv3d(1, 3, 2), nn.Dropout3d(0.5), nn.Flatten(), nn.Linear(24, 3)),
    "alpha": lambda: nn.Sequential(nn.Linear(4, 8), nn.SELU(), nn.AlphaDropout(0.3), nn.Linear(8, 3)),
    "feature alpha": lambda: convolution(nn.SELU(), nn.FeatureAlphaDropout(0.3)),
    "custom": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), MyDropout(), nn.Linear(8, 3)),
    "custom around torch's": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), WrappedDropout(), nn.Linear(8, 3)),
    "named after dropout": DropoutClassifier,
    "drop path": lambda: Skip(DropPath()),
    "skip": lambda: Skip(nn.Dropout(0.5)),
    "concatenated": Concatenated,
    "used twice": UsedTwice,
}
INSIDE = {
    "encoder layer": lambda: Sequences(encoder_layer()),
    "encoder": lambda: Sequences(nn.TransformerEncoder(encoder_layer(), 2)),
    "lstm": lambda: Sequences(nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)),
    "lstm, sequence first": lambda: Sequences(nn.LSTM(4, 4, num_layers=2, dropout=0.5), batch_first=False),
    "attention": lambda: Sequences(nn.MultiheadAttention(4, 2, dropout=0.4, batch_first=True)),
}
OTHER_AXES = {
    "sequence first": SequenceFirst,
    "folded tokens": FoldedTokens,
    "encoder layer, sequence first": lambda: Sequences(encoder_layer(batch_first=False), batch_first=False),
    "for its effect": ForItsEffect,
}
NETS = PLAIN | INSIDE | OTHER_AXES
SHAPES = {"dropout1d": (5, 4), "dropout2d": (1, 5, 5), "dropout3d": (1, 3, 3, 3), "feature alpha": (1, 5, 5)}
SHAPES |= dict.fromkeys([*INSIDE, *OTHER_AXES], (5, 4)) | {"for its effect": (4,)}


def network(name: str) -> nn.Module:
    torch.manual_seed(1)
    net = NETS[name]()
    with torch.no_grad():
        for w in net.parameters():
            w.mul_(2)  # so that masks matter
    return net


def inputs(name: str, rows: int = 3) -> Tensor:
    return torch.randn(rows, *SHAPES.get(name, (4,)), generator=torch.Generator().manual_seed(2))


@functools.cache
def training_passes(name: str, rows: int = 3) -> Tensor:
    """The slow reference: probabilities of ``net.train()``, pass after pass, each on copies with masks of their own."""
    net = network(name).train()
    x = inputs(name, rows)
    copies = x.repeat(50, *[1] * (x.ndim - 1))
    with torch.no_grad():
        return torch.cat([net(copies).softmax(-1).view(50, rows, -1) for _ in range(40)])


def assert_same_law(particles: Tensor, reference: Tensor, deviations: float = 5.0) -> None:
    """Mean and variance of every class at every input agree, within so many standard errors."""
    p, r = particles.double(), reference.double()
    centre = (p.mean(0) + r.mean(0)) / 2
    for moment, a, b in (("mean", p, r), ("variance", (p - centre) ** 2, (r - centre) ** 2)):
        error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
        z = (a.mean(0) - b.mean(0)).abs() / error
        assert float(z.max()) < deviations, f"{moment}s differ by {float(z.max()):.1f} standard errors"


@pytest.mark.parametrize("name", [*PLAIN, *INSIDE, *OTHER_AXES])
def test_marginals_are_those_of_training_passes(name):
    particles = MCDropout(network(name))(inputs(name), 2000).exp()
    assert_same_law(particles, training_passes(name))


@pytest.mark.parametrize("name", PLAIN)
def test_consistent_masks_leave_the_marginals_alone(name):
    particles = MCDropout(network(name), consistent=True)(inputs(name), 2000).exp()
    assert_same_law(particles, training_passes(name))


@pytest.mark.parametrize(("name", "rows"), [("sequence first", 3), ("sequence first", 5), ("folded tokens", 3)])
def test_consistent_masks_on_other_axes_are_right_or_refused(name, rows):
    """A mask on ``(L, B, D)`` or ``(B * L, D)`` cannot be told from one on rows; a wrong law would be worse than an error."""
    teacher = MCDropout(network(name), consistent=True)
    try:
        particles = teacher(inputs(name, rows), 300).exp()
    except ValueError:
        return
    assert_same_law(particles, training_passes(name, rows))


def test_a_sequence_as_long_as_the_batch_is_not_mistaken_for_it():
    # Few particles: where the mistake is made, memory grows with their square.
    particles = MCDropout(network("sequence first"))(inputs("sequence first", rows=5), 300).exp()
    assert_same_law(particles, training_passes("sequence first", rows=5))


@pytest.mark.parametrize("name", NETS)
def test_one_particle_at_a_time_has_the_same_law(name):
    x = inputs(name)[:1].expand(1500, *SHAPES.get(name, (4,)))  # 1500 rows of one input: as many independent particles
    particles = MCDropout(network(name))(x, 1).exp().transpose(0, 1)
    assert_same_law(particles, training_passes(name)[:, :1])


@pytest.mark.parametrize("consistent", [False, True])
def test_marginals_with_batch_norm_are_those_of_its_running_statistics(consistent):
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    x = inputs("dropout")
    net.eval()
    net[3].train()
    with torch.no_grad():
        reference = torch.stack([net(x).softmax(-1) for _ in range(1000)])
    net.train()
    before = {name: w.clone() for name, w in net.state_dict().items()}
    particles = MCDropout(net, consistent=consistent)(x, 4000).exp()
    assert_same_law(particles, reference)
    assert all(torch.equal(w, before[name]) for name, w in net.state_dict().items())


# --- the exact law of the masks --------------------------------------------------------------------------------------

RATE = 0.3


def linear_after_dropout() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A network, two inputs, the outputs (8, 2, K) under all masks of 3 features, and the masks' probabilities."""
    net = nn.Sequential(nn.Dropout(RATE), nn.Linear(3, 3))
    x = torch.tensor([[1.0, -2.0, 3.0], [0.5, 1.5, -1.0]])
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    with torch.no_grad():
        outputs = net[1](x * masks[:, None] / (1 - RATE)).log_softmax(-1)
    kept = masks.sum(1).double()
    return net, x, outputs, (1 - RATE) ** kept * RATE ** (3 - kept)


def masks_of(particles: Tensor, outputs: Tensor) -> Tensor:
    """Which mask each particle used, ``(S, B)``; every particle must be the output under one of them."""
    distance, mask = (particles[:, None] - outputs).abs().amax(-1).min(1)
    assert float(distance.max()) < 1e-5
    return mask


@pytest.mark.parametrize("consistent", [False, True])
@pytest.mark.parametrize(("budget", "count"), [(2**29, 20000), (5000, 4000), (1, 100)])
def test_masks_have_their_enumerated_probabilities(consistent, budget, count):
    net, x, outputs, probability = linear_after_dropout()
    mask = masks_of(MCDropout(net, consistent=consistent, memory_budget=budget)(x, count), outputs)
    for row in mask.T:
        seen = row.bincount(minlength=8)
        assert stats.chisquare(seen.numpy(), (count * probability).numpy()).pvalue > 1e-4


def test_rows_share_a_mask_when_consistent_and_are_independent_otherwise():
    net, x, outputs, probability = linear_after_dropout()
    together = masks_of(MCDropout(net, consistent=True)(x, 2000), outputs)
    assert torch.equal(together[:, 0], together[:, 1])
    apart = masks_of(MCDropout(net)(x, 20000), outputs)
    joint = (8 * apart[:, 0] + apart[:, 1]).bincount(minlength=64)
    expected = 20000 * torch.outer(probability, probability).flatten()
    assert stats.chisquare(joint.numpy(), expected.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("consistent", [False, True])
def test_chunks_of_particles_draw_their_masks_afresh(consistent):
    net, x, outputs, probability = linear_after_dropout()
    mask = masks_of(MCDropout(net, consistent=consistent, memory_budget=48)(x, 201), outputs)[:, 0]
    repeated = int((mask[1:] == mask[:-1]).sum())
    assert stats.binomtest(repeated, 200, float((probability**2).sum())).pvalue > 1e-4


# --- consistent means one function per particle ----------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("budget", [2**29, 1])
def test_equal_rows_get_equal_particles_only_when_consistent(name, budget):
    x = inputs(name)[:1].expand(3, *SHAPES.get(name, (4,)))
    consistent = MCDropout(network(name), consistent=True, memory_budget=budget)(x, 12)
    torch.testing.assert_close(consistent, consistent[:, :1].expand_as(consistent), rtol=0, atol=1e-5)
    assert float(consistent.std(0).min()) > 0
    default = MCDropout(network(name), memory_budget=budget)(x, 4)
    assert float(default.std(1).max()) > 1e-3


@pytest.mark.parametrize("budget", [2**29, 200, 1])
def test_a_consistent_particle_of_a_linear_network_is_linear(budget):
    """f(e1) + f(e2) + f(e3) - 2 f(0) = f(e1 + e2 + e3) for one draw of the masks, in every chunk of rows."""
    net = nn.Sequential(nn.Linear(3, 9), nn.Dropout(0.5), nn.Linear(9, 4))
    x = torch.cat([torch.eye(3), torch.zeros(1, 3), torch.ones(1, 3)])
    particles = MCDropout(net, consistent=True, memory_budget=budget)(x, 10)
    scores = particles - particles.mean(-1, keepdim=True)
    torch.testing.assert_close(scores[:, :3].sum(1) - 2 * scores[:, 3], scores[:, 4], rtol=0, atol=1e-5)
    default = MCDropout(net, memory_budget=budget)(x, 10)
    scores = default - default.mean(-1, keepdim=True)
    assert float((scores[:, :3].sum(1) - 2 * scores[:, 3] - scores[:, 4]).abs().max()) > 0.1


# --- cost ------------------------------------------------------------------------------------------------------------


def rows_seen(layer: nn.Module) -> list[int]:
    seen: list[int] = []
    layer.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    return seen


@pytest.mark.parametrize("consistent", [False, True])
def test_what_comes_before_the_first_mask_is_computed_once(consistent):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    teacher = MCDropout(net, consistent=consistent)
    teacher(torch.randn(5, 4), 7)  # the first call measures the network on one row
    before, after = rows_seen(net[0]), rows_seen(net[3])
    teacher(torch.randn(5, 4), 7)
    assert before == [5]
    assert after == [35]


@pytest.mark.parametrize("consistent", [False, True])
@pytest.mark.parametrize("budget", [1, 100, 1000, 10_000])
def test_no_pass_exceeds_the_memory_budget(budget, consistent):
    net = network("dropout")
    x = inputs("dropout", rows=5)
    per_row = bytes_per_row(net, x)
    assert per_row == 4 * (6 * 8 + 3)  # float32: six layers of eight numbers and one of three
    teacher = MCDropout(net, consistent=consistent, memory_budget=budget)
    teacher(x, 1)  # the first call gets to know the network, with a few rows
    seen = rows_seen(net[-1])
    assert teacher(x, 7).shape == (7, 5, 3)
    assert max(seen) <= max(1, budget // per_row)
    assert sum(seen) == 7 * 5


# --- the user's network and inputs are left alone --------------------------------------------------------------------


@pytest.mark.parametrize("consistent", [False, True])
@pytest.mark.parametrize("count", [1, 5])
def test_dropout_in_place_does_not_touch_the_inputs(consistent, count):
    net = nn.Sequential(nn.Dropout(0.5, inplace=True), nn.Linear(4, 3))
    x = torch.randn(6, 4)
    before = x.clone()
    MCDropout(net, consistent=consistent)(x, count)
    assert torch.equal(x, before)


class Failing(nn.Module):
    """Fails on more than one row, which is after the network has been measured."""

    def __init__(self, error: Exception):
        super().__init__()
        self.first, self.drop, self.norm, self.error = nn.Linear(4, 3), nn.Dropout(0.5), nn.BatchNorm1d(3), error

    def forward(self, x):
        z = self.norm(self.drop(self.first(x)))
        if len(x) > 1:
            raise self.error
        return z


@pytest.mark.parametrize("consistent", [False, True])
@pytest.mark.parametrize("error", [KeyError("boom"), RuntimeError("boom")], ids=lambda e: type(e).__name__)
def test_modes_and_hooks_are_restored_when_the_network_fails(consistent, error):
    net = Failing(error).train()
    net.first.eval()
    net.norm.eval()
    with pytest.raises(type(error), match="boom"):
        MCDropout(net, consistent=consistent)(torch.randn(3, 4), 5)
    assert {name: child.training for name, child in net.named_modules()} == {
        "": True,
        "first": False,
        "drop": True,
        "norm": False,
    }
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in net.modules())


def test_the_one_network_of_the_teacher_is_its_own():
    net, x = network("dropout"), inputs("dropout")
    assert MCDropout(net).network() is net
    with_softmax = nn.Sequential(net, nn.Softmax(-1)).eval()
    logits = MCDropout(with_softmax, outputs="probabilities").network()(x)
    torch.testing.assert_close(logits.softmax(-1), with_softmax(x))


# --- what the network gives ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "outputs"), [(nn.Softmax(-1), "probabilities"), (nn.LogSoftmax(-1), "log_probabilities")]
)
def test_probabilities_and_logits_of_one_network_give_the_same_particles(last, outputs):
    net, x = network("dropout"), inputs("dropout")
    torch.manual_seed(3)
    from_logits = MCDropout(net)(x, 20)
    torch.manual_seed(3)
    particles = MCDropout(nn.Sequential(*net, last), outputs=outputs)(x, 20)
    torch.testing.assert_close(particles, from_logits, rtol=1e-4, atol=1e-5)


def test_a_softmax_announced_as_logits_is_refused():
    with pytest.raises(ValueError, match="announced as logits but lie on the simplex"):
        MCDropout(nn.Sequential(*network("dropout"), nn.Softmax(-1)))(inputs("dropout"), 4)


def test_logits_announced_as_probabilities_are_refused():
    with pytest.raises(ValueError, match="must lie on the simplex; got values in"):
        MCDropout(network("dropout"), outputs="probabilities")(inputs("dropout"), 4)


@pytest.mark.parametrize("tail", [nn.Unflatten(1, (3, 1)), nn.Unflatten(0, (-1, 2))], ids=["three axes", "in pairs"])
def test_a_network_without_a_row_of_scores_per_input_is_refused(tail):
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3), tail, nn.Flatten() if tail.dim == 0 else nn.Identity())
    with pytest.raises(ValueError, match="one row of class scores per input"):
        MCDropout(net)(torch.randn(5, 4), 6)


# --- networks that are not random ------------------------------------------------------------------------------------


class Certain(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(F.dropout(x, 0.0, self.training))


def test_a_network_of_a_users_class_without_dropout_is_refused_by_its_first_call():
    """It might have called dropout as a function, which only a call can show."""
    with pytest.raises(ValueError, match=r"needs a network with dropout of a rate above 0.*; got none in Certain"):
        MCDropout(Certain())(torch.randn(3, 4), 2)


def test_randomness_cannot_be_judged_from_one_particle():
    particles = MCDropout(network("dropout"))(inputs("dropout"), 2)
    check_randomness(particles)
    check_randomness(particles[:1])


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.Dropout2d(0.0), nn.AlphaDropout(0.0), nn.Identity()])
def test_a_rate_of_zero_is_refused(layer):
    with pytest.raises(ValueError, match="needs a network with dropout of a rate above 0"):
        MCDropout(nn.Sequential(layer, nn.Linear(4, 3)))


@pytest.mark.parametrize("name", INSIDE)
def test_consistent_masks_inside_other_layers_are_refused(name):
    with pytest.raises(ValueError, match="consistent masks need dropout in layers of its own; got dropout inside"):
        MCDropout(network(name), consistent=True)
