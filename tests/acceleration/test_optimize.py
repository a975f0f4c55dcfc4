"""The fastest backend predicts what the student predicts, and the timings tell what else was tried."""

import pytest
import torch

import opu
from opu.acceleration.captured import Captured, fields_of, pack, unpack
from opu.acceleration.fused import Fused
from opu.acceleration.optimize import fits_the_kernel
from opu.acceleration.stacked import Stacked, layers_of
from opu.distributions import Dirichlet, LogisticNormal
from opu.students import from_backbone, lenet, mlp

STUDENTS = {
    "mlp": lambda: mlp(12, 3, (8, 7)),
    "one hidden layer": lambda: mlp(12, 3, (8,)),
    "three hidden layers": lambda: mlp(12, 3, (8, 7, 6), link="exp"),
    "one trunk": lambda: mlp(12, 3, (8, 7), shared_trunk=True),
    "no hidden layer": lambda: mlp(12, 3, ()),
    "backbone": lambda: from_backbone(torch.nn.Linear(12, 5), 5, 3),
}
STACKED = ("mlp", "one hidden layer", "three hidden layers")


@pytest.mark.parametrize("name", STUDENTS)
def test_predictions_are_the_students(name):
    student, example = STUDENTS[name](), torch.randn(9, 3, 4) if name != "backbone" else torch.randn(9, 12)
    fast = opu.optimize(student, example)
    for x in (example, torch.randn_like(example), example[:4], example.repeat(3, *[1] * (example.ndim - 1))):
        want, got = student(x), fast(x)
        torch.testing.assert_close(got.mean, want.mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(got.log_precision, want.log_precision, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got.log_mean, want.log_mean, rtol=1e-5, atol=1e-5)
    assert not got.mean.requires_grad
    assert_nan_stays_nan(fast, example)
    assert float(fast.timings[fast.backend]) == min(t for t in fast.timings.values() if isinstance(t, float))
    # Two networks with the same hidden widths are stacked, and no others.
    assert list(fast.timings) == (["plain", "stacked"] if name in STACKED else ["plain"])


def assert_nan_stays_nan(backend, x):
    x = x.clone()
    x[2].view(-1)[1] = torch.nan
    found = backend(x)
    for field in fields_of(found) if isinstance(found, Dirichlet | LogisticNormal) else found:
        assert field[2].isnan().all()
        assert not torch.cat([field[:2], field[3:]]).isnan().any()


LOGISTIC_NORMALS = {
    "mlp": lambda: mlp(12, 3, (8, 7), family="logistic_normal"),
    "two classes, no factor": lambda: mlp(12, 2, (8,), family="logistic_normal"),
    "four factors": lambda: mlp(12, 10, (8, 7, 6), family="logistic_normal"),
    "one trunk": lambda: mlp(12, 3, (8, 7), shared_trunk=True, family="logistic_normal(0)"),
}


@pytest.mark.parametrize("name", LOGISTIC_NORMALS)
def test_logistic_normals_are_the_students(name):
    student, example = LOGISTIC_NORMALS[name](), torch.randn(9, 3, 4)
    fast = opu.optimize(student, example)
    assert list(fast.timings) == (["plain"] if name == "one trunk" else ["plain", "stacked"])
    assert all(isinstance(seconds, float) for seconds in fast.timings.values()), fast.timings
    backends = [fast] if name == "one trunk" else [fast, lambda x: LogisticNormal(*Stacked(student)(x))]
    for backend in backends:
        for x in (example, torch.randn_like(example), example[:4], example[:0], example.repeat(3, 1, 1)):
            want, got = student(x), backend(x)
            assert isinstance(got, LogisticNormal)
            torch.testing.assert_close(got.location, want.location, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(got.log_scale, want.log_scale, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(got.factors, want.factors, rtol=1e-5, atol=1e-5)
        assert_nan_stays_nan(backend, example)
    assert not fits_the_kernel(student)


def test_an_optimized_logistic_normal_predicts_inputs_with_every_measure():
    student, x = mlp(12, 4, (8, 7), family="logistic_normal"), torch.randn(60, 12)
    opu.calibrate(student, x)
    ours, theirs = opu.optimize(student, x).predict(x), student.predict(x)
    for name, values in theirs.scores.items():
        assert ours.scores[name] == pytest.approx(values, rel=1e-3, abs=1e-3), name
    assert ours.interval()[0] == pytest.approx(theirs.interval()[0], abs=1e-4)


def test_the_kernel_is_for_dirichlets():
    assert fits_the_kernel(mlp(12, 3, (8, 8)))
    assert not fits_the_kernel(mlp(12, 3, (8, 8), family="logistic_normal"))


def test_convolutions_run_as_plain_pytorch():
    student, x = lenet(3, (1, 16, 16), (2, 3), 7), torch.randn(4, 1, 16, 16)
    fast = opu.optimize(student, x)
    assert list(fast.timings) == ["plain"]
    torch.testing.assert_close(fast(x).mean, student(x).mean)


def test_networks_of_other_widths_are_not_stacked():
    student = mlp(12, 3, (8, 7))
    student.precision_net = mlp(12, 3, (8, 6)).precision_net
    assert layers_of(student) is None


def test_stacked_in_double_precision_is_the_student_to_the_last_digits():
    student = mlp(12, 3, (8, 7)).double()
    x = torch.randn(50, 12, dtype=torch.float64)
    mean, _, _ = Stacked(student, torch.float64)(x)
    # The heads give float32.
    torch.testing.assert_close(mean.double(), student(x).mean.detach(), rtol=1e-6, atol=1e-7)


def test_it_keeps_what_it_was_made_of():
    student, x = mlp(12, 3, (8, 7)), torch.randn(40, 12)
    opu.calibrate(student, x)
    fast = opu.optimize(student, x)
    before = fast(x).mean
    torch.testing.assert_close(fast.novelty(fast(x)), student.novelty(student(x)), rtol=1e-3, atol=1e-3)
    with torch.no_grad():  # training on does not change its predictions
        for w in student.parameters():
            w.add_(1.0)
    assert torch.equal(fast(x).mean, before)


def test_the_kernel_is_for_two_hidden_layers_of_one_width_at_the_end():
    fits = {(448, 448): True, (450, 450): False, (8, 8): True, (9, 8, 8): True, (8, 7): False, (8,): False, (): False}
    assert {hidden: fits_the_kernel(mlp(12, 3, hidden)) for hidden in fits} == fits
    assert not fits_the_kernel(mlp(12, 3, (8, 8), shared_trunk=True))


def test_a_backend_that_predicts_otherwise_is_not_taken(monkeypatch):
    monkeypatch.setattr(Stacked, "__call__", lambda self, x: (torch.full((len(x), 3), 1 / 3), x[:, 0], x[:, :3]))
    fast = opu.optimize(mlp(12, 3, (8, 7)), torch.randn(5, 12))
    assert fast.backend == "plain"
    assert "off by" in str(fast.timings["stacked"])


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_precision_that_is_not_there_is_refused(precision):
    with pytest.raises(ValueError, match=r"GPU|precision must be float32 or bfloat16"):
        opu.optimize(mlp(4, 3), torch.randn(2, 4), precision=precision)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_outputs_come_out_of_one_row_as_they_went_in(rows):
    for shapes in ([(3,), (), (3,)], [(3,), (3,), (3, 2)], [(2,), (2,), (2, 0)]):
        parts = tuple(torch.randn(rows, *shape) for shape in shapes)
        for before, after in zip(parts, unpack(pack(parts), shapes), strict=True):
            assert torch.equal(before, after)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_backend_of_a_gpu_agrees(precision):
    student, x = mlp(48, 10, (64, 64)).cuda(), torch.randn(33, 6, 8, device="cuda")
    fast = opu.optimize(student, x, precision=precision)
    names = ["plain", "plain, CUDA graph", "stacked", "stacked, CUDA graph"]
    assert list(fast.timings) == names + ["fused, CUDA graph"] * (precision == "bfloat16")
    assert all(isinstance(t, float) for t in fast.timings.values()), fast.timings
    assert_nan_stays_nan(fast, x)
    dtype = getattr(torch, precision)
    stacked = Stacked(student, dtype)
    pairs = [(Captured.for_example(stacked, x.to(dtype)), stacked)]
    if precision == "bfloat16":
        pairs.append((Fused(stacked).captured(x), Fused(stacked)))
    for captured, backend in pairs:
        batches = x, 20 * x, x[:3], x.repeat(2, 1, 1)  # of the captured shape, and of others
        for batch, found in zip(batches, [captured(batch) for batch in batches], strict=True):
            for ours, theirs in zip(found, backend(batch), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(captured.placeholder.float(), 20 * x, rtol=1e-2, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_every_backend_of_a_gpu_agrees_on_logistic_normals(num_classes, precision):
    student, x = mlp(48, num_classes, (64, 64), family="logistic_normal").cuda(), torch.randn(33, 6, 8, device="cuda")
    fast = opu.optimize(student, x, precision=precision)
    assert list(fast.timings) == ["plain", "plain, CUDA graph", "stacked", "stacked, CUDA graph"]
    assert all(isinstance(t, float) for t in fast.timings.values()), fast.timings
    assert_nan_stays_nan(fast, x)
    dtype = getattr(torch, precision)
    stacked = Stacked(student, dtype)
    captured = Captured.for_example(stacked, x.to(dtype))
    for batch in (x, 20 * x, x[:3], x.repeat(2, 1, 1)):
        for ours, theirs in zip(captured(batch), stacked(batch), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("num_classes", [2, 10, 47])
@pytest.mark.parametrize("hidden", [(400, 400), (100, 100), (64, 30, 30)])
def test_the_kernel_agrees_within_bfloat16(hidden, num_classes):
    student = mlp(50, num_classes, hidden).cuda()
    x = torch.randn(333, 50, device="cuda")
    fast = opu.optimize(student, x, precision="bfloat16")
    assert isinstance(fast.timings["fused, CUDA graph"], float), fast.timings
    for batch in (x, 2 * x, x[:7], x[:0], x.repeat(3, 1)):
        torch.testing.assert_close(fast(batch).mean, student(batch).mean, rtol=0, atol=0.02)
    assert_nan_stays_nan(fast, x)
    for backend in (Stacked(student, torch.bfloat16), Stacked(student), Fused(Stacked(student, torch.bfloat16))):
        assert_nan_stays_nan(backend, x)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("hidden", "link"),
    [
        ((400, 400), "exp"),
        ((100, 100), None),
        ((448, 448), None),
        ((33, 33), "exp"),
        ((64, 64), None),
        ((60, 60), None),
    ],
)
def test_every_setting_of_the_kernel_agrees(hidden, link):
    from opu.acceleration.kernel import CONFIGS, last_layers, usable

    student = mlp(50, 10, hidden, **({} if link is None else {"link": link})).cuda()
    x = torch.randn(333, 50, device="cuda")
    fused, want = Fused(Stacked(student, torch.bfloat16)), student(x)
    for config in usable(CONFIGS, {}, WIDTH=hidden[-1]):
        fused.kernel = _Set(last_layers.fn, config)
        mean, log_precision, log_mean = fused(x)
        torch.testing.assert_close(mean, want.mean, rtol=0, atol=0.01, msg=str(config))
        torch.testing.assert_close(log_precision, want.log_precision, rtol=0, atol=0.05, msg=str(config))
        torch.testing.assert_close(mean, log_mean.exp())
        assert_nan_stays_nan(fused, x)


class _Set:
    """The kernel with one of its settings, in place of a search among them."""

    def __init__(self, kernel, config):
        self.kernel, self.config = kernel, config

    def __getitem__(self, grid):
        kwargs, options = self.config.kwargs, {"num_warps": self.config.num_warps, "num_stages": self.config.num_stages}
        return lambda *args, **named: self.kernel[grid(kwargs)](*args, **named, **kwargs, **options)
