"""What a network gives as log-probabilities of classes: kinds of outputs, what they are taken for, and one output alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import opu
from opu.teachers import Ensemble, Function, MCDropout, WeightSamples
from opu.teachers.outputs import ENOUGH_BINARY, Reading, TwoClasses, to_log_probabilities, two_classes

laws = settings(deadline=None, max_examples=50, derandomize=True)
LOG_P = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(-1)


@laws
@given(st.lists(st.floats(-60, 60), min_size=2, max_size=6), st.floats(-1000, 1000))
def test_logits_are_normalised_whatever_their_shift(logits, shift):
    values = torch.tensor([[[*logits]]], dtype=torch.float64)
    shifted = to_log_probabilities(values + shift, "logits")
    torch.testing.assert_close(shifted.exp().sum(-1), torch.ones(1, 1, dtype=torch.float64))
    torch.testing.assert_close(shifted, values.log_softmax(-1), rtol=1e-9, atol=1e-9)


@laws
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.sampled_from([1e-12, 1e-6, 1e-3]))
def test_probabilities_are_kept_and_zeros_raised_to_the_floor(weights, floor):
    p = torch.tensor([[[*weights, 1.0]]], dtype=torch.float64)
    p = p / p.sum()
    log_p = to_log_probabilities(p, "probabilities", floor)
    raised = p.clamp(min=floor)
    torch.testing.assert_close(log_p.exp(), raised / raised.sum(), rtol=1e-9, atol=0)
    assert bool(torch.isfinite(log_p).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_exact_zeros_have_a_finite_logarithm_in_every_precision(dtype):
    log_p = to_log_probabilities(torch.tensor([[[1.0, 0.0]]], dtype=dtype), "probabilities")
    assert bool(torch.isfinite(log_p).all())
    assert float(log_p[0, 0, 0]) == pytest.approx(0, abs=1e-6)


def test_log_probabilities_stay_as_they_are():
    torch.testing.assert_close(to_log_probabilities(LOG_P, "log_probabilities"), LOG_P, rtol=0, atol=1e-12)


def test_probabilities_announced_as_log_probabilities_are_refused():
    """A log_softmax would flatten them silently, as it would probabilities announced as logits."""
    with pytest.raises(ValueError, match="probabilities"):
        Reading("log_probabilities").log_probabilities(LOG_P.exp())


@pytest.mark.parametrize(
    "values", [[0.7, 0.7], [0.5, 0.2], [1.2, -0.2], [torch.nan, 1.0]], ids=["above", "below", "negative", "NaN"]
)
def test_values_off_the_simplex_are_refused(values):
    with pytest.raises(ValueError, match="must lie on the simplex; got values in"):
        Reading("probabilities").log_probabilities(torch.tensor([[values]]))


def test_an_unknown_kind_of_output_is_refused():
    with pytest.raises(ValueError, match="outputs must be logits, log_probabilities or probabilities; got 'odds'"):
        to_log_probabilities(LOG_P, "odds")
    with pytest.raises(ValueError, match="got 'odds'"):
        Ensemble([nn.Linear(2, 2), nn.Linear(2, 2)], outputs="odds")


def test_outputs_that_lie_on_the_simplex_are_not_logits():
    with pytest.raises(ValueError, match="announced as logits but lie on the simplex"):
        Reading("logits").log_probabilities(LOG_P.exp())


# --- logits that lie on the simplex by chance ------------------------------------------------------------------------


class ByChance(nn.Module):
    """Logits that are [0.3, 0.7] or [0.6, 0.4] if the first feature says so, and its linear scores otherwise."""

    def __init__(self):
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 2)

    def forward(self, x):
        z = 5 * self.head(self.drop(x))
        z = torch.where(x[:, :1] == 1, torch.tensor([0.3, 0.7]), z)
        return torch.where(x[:, :1] == 2, torch.tensor([0.6, 0.4]), z)


def row(first: float) -> torch.Tensor:
    return torch.cat([torch.full((1, 1), first), torch.randn(1, 3)], 1)


BY_CHANCE = {
    "mc dropout": lambda: MCDropout(ByChance()),
    "ensemble": lambda: Ensemble([ByChance(), ByChance()]),
    "weight samples": lambda: WeightSamples(ByChance(), [ByChance().state_dict() for _ in range(3)]),
    "function": lambda: Function(lambda x, s: torch.stack([ByChance()(x) for _ in range(s)]), outputs="logits"),
}


@pytest.mark.parametrize("make", BY_CHANCE.values(), ids=BY_CHANCE)
def test_a_row_that_lies_on_the_simplex_by_chance_is_not_refused(make):
    teacher = make()
    for first in (1, 1, 2, 1):  # before anything is known about the network
        teacher(row(first), 5)
    teacher(torch.cat([row(0), row(3)]), 5)
    for _ in range(70):  # it was found good
        particles = teacher(torch.cat([row(1), row(2), row(1)]), 5)
    wanted = torch.tensor([[0.3, 0.7], [0.6, 0.4], [0.3, 0.7]]).log_softmax(-1)
    torch.testing.assert_close(particles, wanted.expand_as(particles))


def test_many_single_rows_of_a_good_ensemble_are_never_refused():
    """One row in a thousand lies on the simplex by chance here: its two logits are s and 1 - s, up to a little."""

    class Near(nn.Module):
        def __init__(self, shift):
            super().__init__()
            self.shift = shift

        def forward(self, x):
            return torch.stack([x[:, 0], 1 + self.shift * 1e-6 - x[:, 0]], 1)

    teacher, rows = Ensemble([Near(0.0), Near(1.0)]), torch.randn(2000, 1, 1)
    # Half the rows lie between 0 and 1, and so on the simplex; the first one that does not decides.
    assert sum(bool(((x >= 0) & (x <= 1)).all()) for x in rows) > 500
    assert all(teacher(x, 2).shape == (2, 1, 2) for x in rows)


SOFTMAX = {
    "mc dropout": lambda net: MCDropout(nn.Sequential(nn.Dropout(0.5), net)),
    "ensemble": lambda net: Ensemble([net, nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))]),
    "weight samples": lambda net: WeightSamples(
        net, [net.state_dict(), {name: -w for name, w in net.state_dict().items()}]
    ),
    "function": lambda net: Function(lambda x, s: torch.stack([net(x + torch.randn_like(x))] * s), outputs="logits"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", SOFTMAX.values(), ids=SOFTMAX)
def test_a_network_that_ends_in_a_softmax_is_refused(make, dtype):
    x = torch.randn(9, 4, dtype=dtype)
    teacher = make(nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)).to(dtype))
    if isinstance(teacher, Ensemble):
        teacher.members[1].to(dtype)
    with pytest.raises(ValueError, match="announced as logits but lie on the simplex"):
        teacher(x, 3)
    for one in x:  # row by row as well, now that enough were seen
        with pytest.raises(ValueError, match="announced as logits but lie on the simplex"):
            teacher(one[None], 3)


def test_a_softmax_is_refused_by_distill_before_anything_is_done(tmp_path):
    members = [nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)) for _ in range(3)]
    with pytest.raises(ValueError, match="announced as logits but lie on the simplex"):
        opu.distill(Ensemble(members), opu.students.mlp(4, 3, (8,)), torch.randn(50, 4), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_hard_votes_announced_as_logits_are_refused():
    votes = Function(lambda x, s: nn.functional.one_hot(torch.arange(s * len(x)) % 2).view(s, -1, 2), outputs="logits")
    with pytest.raises(ValueError, match="announced as logits but lie on the simplex"):
        votes(torch.zeros(20, 4), 5)


# --- one output for two classes --------------------------------------------------------------------------------------


@laws
@given(st.floats(-700, 700))
def test_one_logit_gives_both_classes_however_large_it_is(z):
    found = two_classes(torch.tensor([[z]], dtype=torch.float64), "logits")[0].tolist()
    wanted = [-(max(z, 0) + math.log1p(math.exp(-abs(z)))), -(max(-z, 0) + math.log1p(math.exp(-abs(z))))]
    assert found == pytest.approx(wanted, rel=1e-12, abs=1e-300)


@laws
@given(st.floats(-25, 25))
def test_a_probability_and_its_logarithm_give_the_classes_of_their_logit(z):
    value = torch.tensor([[z]], dtype=torch.float64)
    wanted = two_classes(value, "logits")
    of_log = two_classes(nn.functional.logsigmoid(value), "log_probabilities")
    torch.testing.assert_close(of_log, wanted, rtol=1e-4, atol=1e-12)
    of_p = two_classes(value.sigmoid(), "probabilities")
    torch.testing.assert_close(of_p.exp(), wanted.exp(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_exact_zero_has_a_finite_logarithm(value):
    for outputs, given_ in (("probabilities", value), ("log_probabilities", math.log(value) if value else -math.inf)):
        found = two_classes(torch.tensor([[given_]]), outputs)
        assert bool(torch.isfinite(found).all())
        assert float(found[0, int(value)]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("shape", [(5, 1), (5,)])
@pytest.mark.parametrize("outputs", ["logits", "probabilities", "log_probabilities"])
def test_the_network_of_two_classes_has_their_probabilities_as_softmax(shape, outputs):
    z = torch.randn(shape)
    values = {"logits": z, "probabilities": z.sigmoid(), "log_probabilities": nn.functional.logsigmoid(z)}[outputs]
    p = z.sigmoid().reshape(-1)
    torch.testing.assert_close(TwoClasses(outputs)(values).softmax(-1), torch.stack([1 - p, p], 1))


class OneLogit(nn.Module):
    def __init__(self, form: str = "column"):
        super().__init__()
        self.first, self.drop, self.head, self.form = nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1), form

    def forward(self, x):
        z = 3 * self.head(self.drop(self.first(x).relu()))
        if self.form == "sigmoid":
            return z.sigmoid()
        return {"column": z, "row": z[:, 0], "squeezed": z.squeeze()}[self.form]


def teachers_of(net: nn.Module, **options) -> dict[str, opu.teachers.BaseTeacher]:
    other = type(net)(net.form)
    return {
        "mc dropout": MCDropout(net, **options),
        "mc dropout, consistent": MCDropout(net, consistent=True, **options),
        "ensemble": Ensemble([net, other], **options),
        "weight samples": WeightSamples(net, [net.state_dict(), other.state_dict()], **options),
    }


@pytest.mark.parametrize("name", teachers_of(OneLogit()))
@pytest.mark.parametrize("form", ["column", "row", "squeezed"])
@pytest.mark.parametrize("rows", [1, 6])
def test_one_logit_per_input_is_refused_with_the_cure(name, form, rows):
    with pytest.raises(
        ValueError, match=r"OneLogit gives a single output per input\. .* say binary=True, or return the two"
    ):
        teachers_of(OneLogit(form))[name](torch.randn(rows, 4), 3)


@pytest.mark.parametrize("name", teachers_of(OneLogit()))
@pytest.mark.parametrize("form", ["column", "row", "squeezed", "sigmoid"])
@pytest.mark.parametrize("rows", [1, 6])
def test_binary_gives_the_particles_of_the_two_logits_0_and_z(name, form, rows):
    net = OneLogit(form)
    options = {"outputs": "probabilities"} if form == "sigmoid" else {}
    torch.manual_seed(2)
    teacher = teachers_of(net, binary=True, **options)[name]
    x = torch.randn(rows, 4)
    torch.manual_seed(1)
    found = teacher(x, 2)

    class Both(OneLogit):
        def forward(self, x):
            z = super().forward(x).reshape(-1, 1)
            z = z.logit() if self.form == "sigmoid" else z
            return torch.cat([torch.zeros_like(z), z], 1)

    two = Both(form)
    two.load_state_dict(net.state_dict())
    torch.manual_seed(2)
    other = OneLogit(form)  # the second member, drawn alike
    reference = teachers_of(two)[name]
    if isinstance(reference, Ensemble):
        reference.members[1].load_state_dict(other.state_dict())
    if isinstance(reference, WeightSamples):
        reference = WeightSamples(two, [net.state_dict(), other.state_dict()])
    torch.manual_seed(1)
    torch.testing.assert_close(found, reference(x, 2), rtol=1e-3, atol=1e-5)


def test_binary_needs_one_output():
    with pytest.raises(
        ValueError, match=r"binary=True needs a network with a single output per input; got .* \(5, 3\)"
    ):
        Ensemble([nn.Linear(4, 3), nn.Linear(4, 3)], binary=True)(torch.randn(5, 4), 2)


def test_binary_outputs_of_another_kind_are_refused():
    nets = [nn.Linear(4, 1), nn.Linear(4, 1)]
    for net in nets:
        nn.init.constant_(net.bias, 5.0)
    with pytest.raises(ValueError, match=r"must lie between 0 and 1; got values in .* say outputs=\"logits\""):
        Ensemble(nets, binary=True, outputs="probabilities")(torch.zeros(5, 4), 2)
    with pytest.raises(ValueError, match=r"must not be positive; got outputs up to 5\. "):
        Ensemble(nets, binary=True, outputs="log_probabilities")(torch.zeros(5, 4), 2)


def test_probabilities_of_class_1_announced_as_logits_cause_a_warning():
    teacher = Ensemble([nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()) for _ in range(2)], binary=True)
    with pytest.warns(UserWarning, match="lie between 0 and 1; if the network ends in a sigmoid"):
        teacher(torch.randn(ENOUGH_BINARY, 4), 2)
    teacher(torch.randn(ENOUGH_BINARY, 4), 2)  # once


def test_one_logit_is_sampled_by_its_own_likelihood():
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    labels = (x[:, 0] > 0).long()
    settings_ = opu.teachers.LangevinSettings(1e-3, 1e-3, prior_precision=1.0, burn_in=300, thinning=5, num_samples=20)
    teacher = opu.teachers.sgld(nn.Linear(2, 1), x, labels, settings_, binary=True)
    found = teacher(x, 20).exp().mean(0)
    assert float((found.argmax(-1) == labels).float().mean()) > 0.95
    chain = opu.teachers.Chain(nn.Linear(2, 1), x, labels, settings_, binary=True)
    chain.walk(300)
    assert float((chain(x, 5).mean(0).argmax(-1) == labels).float().mean()) > 0.9
    assert chain.network()(x).shape == (200, 2)


def test_laplace_refuses_one_logit():
    with pytest.raises(ValueError, match=r"gives a single output per input.* two logits 0 and z"):
        opu.teachers.laplace(nn.Linear(4, 1), torch.randn(30, 4), torch.arange(30) % 2)
