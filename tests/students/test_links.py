"""Links against their formulas in 40 digits, at the ends of their range, and as names."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath.ctx_mp import MPContext

import opu
from opu import students
from opu.students import Exp, Sigmoid, Softplus, Softsign
from opu.students.links import bounds_for, parse_link

mp = MPContext()
mp.dps = 40
laws = settings(deadline=None, max_examples=100, derandomize=True)
finite = st.floats(-1e4, 1e4)
bounds = st.tuples(st.floats(-50, 50), st.floats(-50, 50)).filter(lambda pair: pair[0] + 1e-6 < pair[1])
EXTREMES = [-1e4, -1e3, -104.0, -88.0, -50.0, -16.0, -15.0001, -15.0, -14.9999, -1.0, 0.0, 1.0, 20.0, 88.0, 1e3, 1e4]


def log_softplus(z: float) -> float:
    return float(mp.log(mp.log1p(mp.exp(mp.mpf(z)))))


@laws
@given(finite)
def test_exp_leaves_the_log_precision_as_it_is(z):
    assert Exp()(torch.tensor([z], dtype=torch.float64)).item() == z


@laws
@given(finite)
def test_softplus_is_the_log_of_softplus(z):
    found = Softplus()(torch.tensor([z], dtype=torch.float64)).item()
    assert found == pytest.approx(log_softplus(z), rel=1e-12, abs=2e-7)


@laws
@given(finite, bounds)
def test_sigmoid_is_a_sigmoid_between_its_bounds(z, pair):
    low, high = pair
    found = Sigmoid(low, high)(torch.tensor([z], dtype=torch.float64)).item()
    expected = low + (high - low) * float(1 / (1 + mp.exp(-mp.mpf(z))))
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12 * (abs(low) + abs(high)))


@laws
@given(finite, bounds)
def test_softsign_approaches_its_bounds_as_one_over_z(z, pair):
    low, high = pair
    found = Softsign(low, high)(torch.tensor([z], dtype=torch.float64)).item()
    near, far = (low, high) if z < 0 else (high, low)
    left = mp.mpf(far - near) / (2 * (1 + abs(mp.mpf(z))))  # of the way to the bound on z's side
    assert found == pytest.approx(float(near + left), rel=1e-12, abs=1e-12 * (abs(low) + abs(high)))


def test_softsign_lets_a_precision_come_back_from_where_the_sigmoid_holds_it():
    """Two hundred steps of Adam from far out, towards the middle."""
    ends = {}
    for link in (Sigmoid(), Softsign()):
        z = torch.tensor([30.0], requires_grad=True)
        optimizer = torch.optim.Adam([z], 0.3)
        for _ in range(200):
            optimizer.zero_grad()
            (link(z) - 2.5).square().sum().backward()
            optimizer.step()
        ends[type(link)] = float(link(z.detach()))
    assert ends[Sigmoid] > 6.99
    assert abs(ends[Softsign] - 2.5) < 0.5


@pytest.mark.parametrize("kind", [Sigmoid, Softsign])
@laws
@given(bounds, st.lists(finite, min_size=2, max_size=8))
def test_a_bounded_link_stays_within_its_bounds_and_never_falls(kind, pair, values):
    low, high = pair
    z = torch.tensor(sorted(values))
    found = kind(low, high)(z)
    rounding = 1e-6 * (abs(low) + abs(high))
    assert float(found.min()) >= low - rounding
    assert float(found.max()) <= high + rounding
    assert bool((found.diff() >= 0).all())


def test_sigmoid_is_in_the_middle_at_zero_and_at_its_bounds_far_out():
    z = torch.tensor([-1e4, 0.0, 1e4])
    assert Sigmoid()(z).tolist() == [-2.0, 2.5, 7.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softplus_is_stable_with_the_right_gradient_everywhere(dtype):
    z = torch.tensor(EXTREMES, dtype=dtype, requires_grad=True)
    found = Softplus()(z)
    (gradient,) = torch.autograd.grad(found.sum(), z)
    slopes = [float(1 / (1 + mp.exp(-mp.mpf(z))) / mp.log1p(mp.exp(mp.mpf(z)))) for z in EXTREMES]
    assert found.tolist() == pytest.approx([log_softplus(z) for z in EXTREMES], rel=1e-6, abs=1e-6)
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-5)


@pytest.mark.parametrize("link", [Exp(), Softplus(), Sigmoid(), Softsign()], ids=str)
def test_gradients_are_finite_and_never_negative(link):
    z = torch.tensor(EXTREMES, requires_grad=True)
    (gradient,) = torch.autograd.grad(link(z).sum(), z)
    assert bool(torch.isfinite(gradient).all())
    assert float(gradient.min()) >= 0


# --- links by name ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "link", [Exp(), Softplus(), Sigmoid(), Sigmoid(-1.5, 3.0), Sigmoid(0.0, 1e6), Softsign(-1.5, 3.0)], ids=str
)
def test_a_link_is_read_back_from_its_name(link):
    assert parse_link(str(link)) == link
    assert parse_link(link) is link


@pytest.mark.parametrize("kind", [Sigmoid, Softsign])
@laws
@given(bounds)
def test_any_bounds_are_read_back_exactly(kind, pair):
    """A saved student keeps its link as this name, and must predict as before."""
    link = kind(*pair)
    assert parse_link(str(link)) == link


@pytest.mark.parametrize(
    "name", ["sigmoid(-1,2.5)", "bounded( -1 , 2.5 )", "sigmoid(-1.0, +2.5)", "sigmoid(-1e0, 25e-1)"]
)
def test_bounds_may_be_written_in_several_forms(name):
    assert parse_link(name) == Sigmoid(-1.0, 2.5)


def test_the_plain_names():
    assert parse_link("exp") == Exp()
    assert parse_link("softplus") == Softplus()
    assert parse_link("sigmoid") == Sigmoid(-2.0, 7.0)
    assert parse_link("softsign") == Softsign(-2.0, 7.0) != Sigmoid(-2.0, 7.0)


def test_names_from_before_are_still_read():
    assert parse_link("slowly_bounded(-1.5, 3.0)") == Softsign(-1.5, 3.0)
    assert parse_link("bounded") == Sigmoid(-2.0, 7.0)


@pytest.mark.parametrize(
    "name", ["", "tanh", "Exp", "sigmoid(1)", "sigmoid(1, 2, 3)", "bounded(a, b)", "sigmoid(1.2.3, 4)", "bounded(., 1)"]
)
def test_an_unknown_name_is_refused_with_those_that_exist(name):
    with pytest.raises(
        ValueError, match=r"a link is exp, softplus, sigmoid\(low, high\) or softsign\(low, high\); got"
    ):
        parse_link(name)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.nan)])
def test_bounds_that_do_not_rise_are_refused(low, high):
    with pytest.raises(ValueError, match="the bounds of a link must be finite and rise; got"):
        Sigmoid(low, high)


@pytest.mark.parametrize(("low", "high"), [(-math.inf, 1.0), (0.0, math.inf)])
def test_infinite_bounds_are_refused(low, high):
    with pytest.raises(ValueError, match="bounds"):
        Sigmoid(low, high)


@pytest.mark.parametrize("link", [Exp(), Softplus(), Sigmoid(-2.0, 7.0), Softsign(-2.0, 7.0)], ids=str)
@given(g=st.floats(-0.6, 5.6))
def test_the_inverse_of_a_link_leads_back(link, g):
    assert float(link(torch.tensor([link.inverse(g)], dtype=torch.float64))) == pytest.approx(g, abs=1e-6)


def test_the_inverse_of_bounds_stays_finite_beyond_them():
    for g in (-50.0, 50.0, math.inf):
        assert abs(Sigmoid(-2.0, 7.0).inverse(g)) < 5
        assert abs(Softsign(-2.0, 7.0).inverse(g)) < 5


@pytest.mark.parametrize("kind", [Sigmoid, Softsign])
def test_at_a_links_edge_the_slope_is_a_tenth_of_that_in_the_middle(kind):
    link = kind(-1.0, 3.0)
    middle, edge = 1.0, 3.0 - 4.0 * link.edge
    z = torch.tensor([link.inverse(middle), link.inverse(edge)], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(link(z).sum(), z)
    assert float(slope[1] / slope[0]) == pytest.approx(0.1, abs=0.011)


def test_bounds_leave_room_above_what_was_fitted_but_not_without_end():
    assert bounds_for(torch.zeros(10)) == (-2.0, 7.0)
    assert bounds_for(torch.full((10,), 9.0)) == (-2.0, 10.0)
    assert bounds_for(torch.tensor([1.0, 60.0, 60.0, 60.0])) == (-2.0, 12.0)
    assert bounds_for(torch.full((10,), -4.52)) == (-5.5, 7.0)
    assert bounds_for(torch.full((10,), -60.0)) == (-8.0, 7.0)


@pytest.mark.parametrize("shared", [False, True])
def test_a_student_starts_about_the_precision_it_is_told(shared):
    student = students.mlp(4, 3, (16,), shared_trunk=shared).start_precision_at(5.0)
    with torch.no_grad():
        started = student(0.1 * torch.randn(50, 4)).log_precision
    assert float((started - 5.0).abs().max()) < 1.0


def sharp(log_precision):
    """A teacher whose particles are draws of Dirichlets with a known precision."""

    def teacher(x, num_particles):
        q = opu.Dirichlet.from_logits(x, torch.full((len(x),), log_precision))
        return q.log_rsample(num_particles)

    return teacher


def test_fitted_bounds_leave_room_for_the_teachers_precision_and_are_saved(tmp_path):
    x = torch.randn(300, 3)
    student = students.mlp(3, 3, (8,)).fit_bounds(sharp(9.0), x)
    assert isinstance(student.link, Softsign)
    assert student.link.high == pytest.approx(10.0, abs=0.3)
    student.save(tmp_path / "student")
    again = opu.load(tmp_path / "student")
    assert again.link == student.link
    assert torch.equal(again(x).log_precision, student.eval()(x).log_precision)


def test_fitted_bounds_of_a_plain_teacher_are_the_default_and_keep_the_kind_of_link():
    student = students.mlp(3, 3, (8,), link="sigmoid").fit_bounds(sharp(2.0), torch.randn(100, 3))
    assert student.link == Sigmoid(-2.0, 7.0)


def test_fitted_bounds_never_narrow_those_that_were_given():
    student = students.mlp(3, 3, (8,), link="softsign(-6, 15)").fit_bounds(sharp(2.0), torch.randn(100, 3))
    assert student.link == Softsign(-6.0, 15.0)


def test_bounds_are_fitted_to_inputs_of_any_kind_and_on_a_backbone(tmp_path):
    backbone = torch.nn.Linear(3, 4)
    for x in (torch.randn(600, 3), torch.randn(600, 3).numpy(), torch.utils.data.TensorDataset(torch.randn(600, 3))):
        student = students.from_backbone(backbone, 4, 3).fit_bounds(sharp(9.0), x)
        assert student.link.high == pytest.approx(10.0, abs=0.3)
    student.save(tmp_path / "student")
    assert opu.load(tmp_path / "student", backbone=torch.nn.Linear(3, 4)).link == student.link


def test_the_bounds_of_a_trained_student_stay_as_they_are():
    student = students.mlp(3, 3, (8,))
    x = torch.randn(60, 3)
    opu.distill(sharp(3.0), student, x, recipe=opu.Recipe(epochs=1), held_out=x, progress=False)
    with pytest.raises(ValueError, match="bounds are fitted before distilling; this student is trained"):
        student.fit_bounds(sharp(9.0), x)


def test_only_a_bounded_link_has_bounds_to_fit():
    with pytest.raises(ValueError, match="only a bounded link has bounds to fit; this student's is exp"):
        students.mlp(3, 3, (8,), link="exp").fit_bounds(sharp(2.0), torch.randn(10, 3))
