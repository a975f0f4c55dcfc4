"""Students made from networks of many kinds: they start as the teacher's network and leave it alone."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.prune import l1_unstructured

import opu
from opu.distributions.dirichlet import Dirichlet
from opu.students import Student, from_teacher, prune
from opu.teachers import Ensemble, Function, MCDropout, WeightSamples


class ConvNet(nn.Module):
    """A user's class, with a method of its own and an optional argument."""

    def __init__(self, num_classes=3):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.fc = nn.Dropout(0.3), nn.Linear(36, num_classes)

    def features(self, x):
        return F.max_pool2d(self.norm(self.conv(x)).relu(), 2)

    def forward(self, x, mask=None):
        x = self.features(x)
        if mask is not None:
            x = x * mask
        return self.fc(self.drop(x.flatten(1)))


class LogProbabilities(ConvNet):
    def forward(self, x):
        return F.log_softmax(super().forward(x), dim=1)


class Probabilities(ConvNet):
    def forward(self, x):
        return super().forward(x).softmax(-1)


class FunctionalDropout(ConvNet):
    def forward(self, x):
        return super().forward(F.dropout(x, 0.5, training=self.training))


class AuxiliaryOutput(ConvNet):
    def forward(self, x):
        out = super().forward(x)
        return (out, out) if self.training else out


class Untraceable(ConvNet):
    def forward(self, x):
        if x.ndim == 3:
            x = x.unsqueeze(1)
        return self.fc(self.drop(self.features(x).view(len(x), -1)))


class FullyConvolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Conv2d(1, 4, 3), nn.Dropout2d(0.3), nn.Conv2d(4, 3, 1)

    def forward(self, x):
        return self.last(self.drop(self.first(x).relu())).flatten(2).mean(-1)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu, self.drop, self.pool = nn.ReLU(inplace=True), nn.Dropout(0.2), nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        out = self.norm(self.conv(x))
        out += x
        return self.fc(self.drop(torch.flatten(self.pool(self.relu(out)), 1)))


class Strided(ResNet):
    """As networks for small images end: a pooling whose output depends on the size of the image."""

    def forward(self, x):
        out = self.relu(self.norm(self.conv(self.stem(x))))[:, :, ::2, ::2]
        out = nn.functional.avg_pool2d(out, out.shape[-1])
        return self.fc(self.drop(out.view(out.size(0), -1)))


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.rnn, self.fc = kind(5, 6, num_layers=2, batch_first=True, dropout=0.3), nn.Linear(6, 3)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.fc(out[:, -1])


class Attention(nn.Module):
    """Tokens in, with position codes that are no part of the state dict."""

    def __init__(self):
        super().__init__()
        self.embedding, self.fc = nn.Embedding(11, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.register_buffer("positions", torch.arange(56.0).sin().view(1, 7, 8), persistent=False)

    def forward(self, x):
        x = self.embedding(x.long()) + self.positions[:, : x.shape[1]]
        return self.fc((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.drop, self.fc = nn.Embedding(11, 8), nn.Dropout(0.2), nn.Linear(8, 11, bias=False)
        self.fc.weight = self.embedding.weight
        self.first = self.second = nn.Linear(8, 8)

    def forward(self, x):
        x = self.embedding(x.long()).mean(1)
        return self.fc(self.drop(self.second(self.first(x).tanh()).tanh()))


def normalised():
    first, last = parametrizations.weight_norm(nn.Linear(4, 6)), parametrizations.spectral_norm(nn.Linear(6, 3))
    return nn.Sequential(first, nn.ReLU(), nn.Dropout(0.2), last)


def hooked():
    net = ConvNet()
    net.conv.register_forward_hook(lambda _layer, _inputs, out: 2 * out)
    return net


def mlp(activation=nn.ReLU, dtype=torch.float32):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), activation(), nn.Dropout(0.3), nn.Linear(8, 3)).to(dtype)


def convolutions():
    first = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*first, nn.Sequential(nn.Flatten(), nn.Linear(16, 3)))


def rows(n):
    return torch.randn(n, 4)


def images(n):
    return torch.randn(n, 1, 8, 8)


def sequences(n):
    return torch.randn(n, 7, 5)


def tokens(n):
    return torch.randint(0, 11, (n, 7)).float()


NETWORKS = {
    "mlp": (mlp, rows),
    "mlp, tanh": (lambda: mlp(nn.Tanh), rows),
    "convolutions": (convolutions, images),
    "class": (ConvNet, images),
    "log-probabilities": (LogProbabilities, images),
    "probabilities": (Probabilities, images),
    "functional dropout": (FunctionalDropout, images),
    "auxiliary output": (AuxiliaryOutput, images),
    "skip connection": (ResNet, images),
    "pooled whole": (Strided, images),
    "lstm": (Recurrent, sequences),
    "gru": (lambda: Recurrent(nn.GRU), sequences),
    "attention": (Attention, tokens),
    "tied": (Tied, tokens),
    "parametrised": (normalised, rows),
    "hooked": (hooked, images),
}
# These have no last linear layer that can be found, so they need an example and cannot share a trunk.
WITHOUT_HEAD = {"untraceable": (Untraceable, images), "fully convolutional": (FullyConvolutional, images)}
OUTPUTS = {"log-probabilities": "log_probabilities", "probabilities": "probabilities"}
RECIPE = opu.Recipe(epochs=1, batch_size=20, num_particles=4, augment=None)
cases = pytest.mark.parametrize(
    ("name", "shared"),
    [(name, shared) for name in NETWORKS for shared in (False, True)] + [(name, False) for name in WITHOUT_HEAD],
)


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A network that has seen inputs in training mode, and inputs."""
    make, inputs = (NETWORKS | WITHOUT_HEAD)[name]
    net, x = make(), inputs(40)
    net.train()(x)
    return net, x


def student_of(name: str, shared: bool) -> tuple[Student, MCDropout, nn.Module, torch.Tensor]:
    net, x = build(name)
    teacher = MCDropout(net, outputs=OUTPUTS.get(name, "logits"))
    example = x[:2] if name in WITHOUT_HEAD else None
    return from_teacher(teacher, shared_trunk=shared, example=example), teacher, net, x


def probabilities(name: str, net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out = copy.deepcopy(net).eval()(x)
    return out if name == "probabilities" else out.softmax(-1)


def state(net: nn.Module) -> list:
    """Everything of a network that a user could see changed."""
    settings = [
        (m.training, getattr(m, "p", None), len(m._forward_hooks), len(m._forward_pre_hooks)) for m in net.modules()
    ]
    settings += [m.dropout for m in net.modules() if isinstance(m, nn.RNNBase | nn.MultiheadAttention)]
    return settings + [(w.requires_grad, w.grad is None, w.tolist()) for w in (*net.parameters(), *net.buffers())]


@cases
def test_a_student_starts_as_the_teachers_network_and_leaves_it_alone(name, shared):
    student, teacher, net, x = student_of(name, shared)
    before = state(net)
    with torch.no_grad():
        q = student.eval()(x)
    assert isinstance(q, Dirichlet)
    torch.testing.assert_close(q.mean, probabilities(name, net, x))
    assert bool(torch.isfinite(q.log_precision).all())
    assert (student.trunk is not None) == shared
    assert not {w.data_ptr() for w in net.parameters()} & {w.data_ptr() for w in student.parameters()}
    assert all(w.requires_grad for w in student.parameters())
    weights = {key: w.clone() for key, w in student.state_dict().items()}
    opu.distill(teacher, student, x, recipe=RECIPE, progress=False)
    assert state(net) == before
    moved = {key for key, w in student.named_parameters() if not torch.equal(w, weights[key])}
    assert any(key.startswith("precision_net") for key in moved)
    assert any(key.startswith("trunk" if shared else "mean_net") for key in moved)
    still = [key for key in weights if "running" in key or "num_batches" in key]
    assert all(torch.equal(student.state_dict()[key], weights[key]) for key in still)


@pytest.mark.parametrize("name", ["functional dropout", "auxiliary output", "attention", "lstm", "hooked"])
def test_while_distilling_nothing_is_random(name):
    student, teacher, _, x = student_of(name, False)
    student.fresh_start(teacher, opu.Recipe())
    student.distill_mode()
    assert student.training
    assert torch.equal(student(x).mean, student(x).mean)
    recurrent = [layer for layer in student.modules() if isinstance(layer, nn.RNNBase)]
    assert all(layer.training for layer in recurrent)  # on a GPU they can only learn so


def test_the_precision_network_reads_what_the_last_layer_reads():
    student, _, net, x = student_of("class", False)
    features = copy.deepcopy(net).eval().features(x).flatten(1)
    trunk, head = student.precision_net
    torch.testing.assert_close(trunk(x), features)
    assert (head.in_features, head.out_features) == (36, 1)


def test_a_plain_mlp_becomes_the_students_own_kind():
    net, x = mlp(), rows(6)
    for shared in (False, True):
        student = from_teacher(net, shared_trunk=shared)
        assert student.architecture["architecture"] == "mlp"
        torch.testing.assert_close(student(x).mean, net.eval()(x).softmax(-1))
    hidden = from_teacher(net).precision_net[1]
    assert torch.equal(hidden.weight, net[1].weight)
    assert hidden.weight is not net[1].weight


@pytest.mark.parametrize("spoil", ["tied", "hook", "no bias", "masked"])
def test_an_mlp_with_more_to_it_is_copied_as_it_is(spoil):
    layer, x = nn.Linear(4, 4, bias=spoil != "no bias"), rows(6)
    net = nn.Sequential(layer, nn.ReLU(), layer if spoil == "tied" else nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    if spoil == "hook":
        layer.register_forward_hook(lambda _layer, _inputs, out: out + 1)
    if spoil == "masked":
        l1_unstructured(layer, "weight", 0.5)
        net(x)
    student = from_teacher(net)
    assert student.architecture["architecture"] == "from_teacher"
    torch.testing.assert_close(student(x).mean, net(x).softmax(-1))


def test_the_average_of_weight_samples_and_the_first_member_of_an_ensemble():
    samples = [ConvNet().state_dict() for _ in range(3)]
    average, x = ConvNet().eval(), images(6)
    average.load_state_dict({name: sum(s[name] for s in samples) / 3 for name in samples[0]})
    student = from_teacher(WeightSamples(ConvNet(), samples))
    torch.testing.assert_close(student.eval()(x).mean, average(x).softmax(-1))
    members = [ResNet().eval(), ConvNet()]
    torch.testing.assert_close(from_teacher(Ensemble(members))(x).mean, members[0](x).softmax(-1))


def test_frozen_weights_learn_in_the_student_and_float64_stays():
    net, x = ConvNet().double().eval().requires_grad_(False), images(4).double()
    for shared in (False, True):
        student = from_teacher(net, shared_trunk=shared)
        assert all(w.requires_grad and w.dtype == torch.float64 for w in student.parameters())
        assert student(x).log_precision.dtype == torch.float64
    assert not any(w.requires_grad for w in net.parameters())


def test_a_lazy_network_is_refused_before_its_first_call_and_taken_after_it():
    net, x = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(3)), rows(3)
    with pytest.raises(ValueError, match=r"lazy layers without weights so far; run it once, net\(x\)"):
        from_teacher(net)
    net(x)
    torch.testing.assert_close(from_teacher(net)(x).mean, net(x).softmax(-1))


def test_weights_that_a_hook_computes_can_be_copied():
    with pytest.warns(FutureWarning, match="weight_norm"):
        net = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))
    x = rows(3)
    net(x)
    student = from_teacher(net)
    torch.testing.assert_close(student(x).mean, net(x).softmax(-1))


class Pair(ConvNet):
    def forward(self, x):
        return super().forward(x), x


class Named(ConvNet):
    def forward(self, x):
        return {"logits": super().forward(x)}


REFUSALS = {
    "two heads": (Pair, None, "since this one returns a tuple; give a few inputs"),
    "two heads, example": (Pair, images(2), "Pair returns a tuple"),
    "dict": (Named, None, "since this one returns a dict; give a few inputs"),
    "one output": (lambda: ConvNet(1), None, "a single output per input. .* return the two logits 0 and z"),
    "one output, mlp": (lambda: nn.Linear(4, 1), None, "two or more classes"),
    "softmax": (Probabilities, None, 'ends in a softmax.*outputs="probabilities"'),
    "softmax, example": (Probabilities, images(2), 'outputs="probabilities"'),
    "no linear layer": (
        FullyConvolutional,
        None,
        r"since this one ends in 'mean'; give a few inputs: .*example=x\[:2\]",
    ),
    "untraceable": (Untraceable, None, r"cannot be traced \(symbolically traced variables.*give a few inputs"),
    "wrong example": (ConvNet, rows(2), r"cannot read inputs of shape \(2, 4\) .*Give an example as the teacher takes"),
    "a row for each step": (lambda: mlp(nn.Tanh)[1:], sequences(2)[..., :4], r"returns shape \(2, 7, 3\)"),
    "a function": (lambda: Function(lambda x, n: x), None, "a teacher that holds a network .*got Function. Use"),
    "a student": (lambda: opu.students.mlp(4, 3), None, "got Student"),
    "nothing": (lambda: None, None, "got NoneType"),
    "no weights": (nn.Identity, rows(2), "has no weights to give to from_teacher"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_work_says_why(name):
    make, example, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message) as refusal:
        from_teacher(make(), example=example)
    assert "\n" not in str(refusal.value)


def test_logits_in_a_dict_are_understood_with_an_example():
    net, x = Named().eval(), images(4)
    student = from_teacher(net, example=x)
    torch.testing.assert_close(student(x).mean, net(x)["logits"].softmax(-1))


@pytest.mark.parametrize("name", sorted(set(WITHOUT_HEAD) - {"untraceable"}))
def test_a_trunk_cannot_be_shared_if_the_last_layer_is_not_found(name):
    net, x = build(name)
    with pytest.raises(ValueError, match="shared_trunk=True needs a network that ends in a linear layer, but"):
        from_teacher(net, shared_trunk=True, example=x)


def test_the_last_layer_of_a_network_that_cannot_be_traced_is_found_by_running_it():
    net, x = build("untraceable")
    for shared in (False, True):
        student = from_teacher(net, shared_trunk=shared, example=x)
        torch.testing.assert_close(student(x).mean, net.eval()(x).softmax(-1))
        head = student.precision_net if shared else student.precision_net[-1]
        assert head.in_features == student.mean_net.in_features if shared else head.in_features > 3


def test_a_copy_is_pruned_like_any_other_student():
    net = nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 10), nn.Tanh(), nn.Linear(10, 3))
    student = prune(from_teacher(net), 0.5)
    weights = torch.cat([w.flatten() for name, w in student.named_parameters() if name.endswith("weight")])
    assert float((weights == 0).double().mean()) == pytest.approx(0.5, abs=0.01)
