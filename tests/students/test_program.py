"""Networks as lists of operators: the same predictions without the class, and nothing but operators from a file."""

import copy
import json
import shutil

import pytest
import torch
from torch import nn
from torch.nn.utils.prune import l1_unstructured

import opu
from opu.students import from_teacher, prune
from opu.students.budget import Budget
from opu.students.program import _OPERATORS, Program
from opu.students.tracing import to_program
from tests.student_files import edit


class Mixed(nn.Module):
    """Arithmetic with shapes, constants, updates in place, integers and masks; one layer twice; one that is not used."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Linear(5, 5)
        self.unused, self.last = nn.Linear(5, 5), nn.Linear(5, 3)
        self.register_buffer("scale", torch.arange(1.0, 6.0), persistent=False)

    def forward(self, x):
        steps = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
        distance = (steps[:, None] - steps[None]).abs().mul_(-1)
        x = self.second(self.first(x * self.scale).relu_()).reshape(x.shape[0] * x.shape[1], -1)
        x = torch.where(x > 0.1, x, x * torch.tensor([0.5])).view(-1, steps.shape[0], 5)
        return self.last(torch.einsum("btc,ts->bsc", x, distance.softmax(-1)).masked_fill(x > 5, 0.0).amax(1))


def norms() -> nn.Module:
    net = nn.Sequential(nn.Conv1d(7, 4, 3, padding="same"), nn.BatchNorm1d(4), nn.GELU(), nn.MaxPool1d(2))
    net.extend([nn.Flatten(), nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 3)])
    net(torch.randn(9, 7, 5))
    return net


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(5, 3, bidirectional=True, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0][:, -1].log_softmax(-1)


class CountsRows(Mixed):
    def forward(self, x):
        return super().forward(x).view(len(x), -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(5, 1, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.attention(x, x, x, need_weights=False)[0][:, 0])


class Rotary(nn.Module):
    """Attention by einsum, with position codes from a region without gradients and a nested one without autocast."""

    def __init__(self, autocast=False):
        super().__init__()
        self.query, self.key, self.last = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(5, 3)
        self.autocast = autocast
        self.register_buffer("frequencies", torch.tensor([1.0, 0.1]))

    def codes(self, x):
        with torch.no_grad():
            positions = torch.arange(x.shape[1], device=x.device)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
                angles = torch.einsum("t,f->tf", positions.to(x.dtype), self.frequencies)
            return angles.cos(), angles.sin()

    def forward(self, x):
        cos, sin = self.codes(x)
        turned = []
        for layer in (self.query, self.key):
            a, b = layer(x).chunk(2, -1)
            turned.append(torch.cat([a * cos - b * sin, a * sin + b * cos], -1))
        weights = torch.einsum("btf,bsf->bts", *turned).softmax(-1)
        return self.last(torch.einsum("bts,bsf->btf", weights, x).mean(1))


class OnlyRegion(nn.Module):
    """A network that is a region without gradients and nothing else."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        with torch.no_grad():
            return self.last(x.mean(1))


NETWORKS = {
    "mixed": Mixed,
    "rotary": Rotary,
    "only a region": OnlyRegion,
    "norms": norms,
    "recurrent": Recurrent,
    "attention": Attention,
    "counts rows": CountsRows,
}


def read_again(net: nn.Module, x: torch.Tensor) -> Program:
    program, constants = to_program(copy.deepcopy(net), x[:1])
    return Program(json.loads(json.dumps(program)), {**net.state_dict(), **constants})


@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_computes_what_the_network_does_for_batches_of_any_size(name):
    net, x = NETWORKS[name]().eval(), torch.randn(6, 7, 5)
    program = read_again(net, x)
    for rows in (1, 2, 6):
        assert torch.equal(program(x[:rows]), net(x[:rows]))


def test_a_program_in_double_precision_is_written_again():
    net, x = Mixed().eval().double(), torch.randn(6, 7, 5, dtype=torch.float64)
    again = read_again(read_again(net, x), x)
    assert torch.equal(again(x), net(x))
    assert torch.equal(copy.deepcopy(again)(x), net(x))


def test_sequences_may_have_another_length():
    net, x = Mixed().eval(), torch.randn(6, 9, 5)
    assert torch.equal(read_again(net, x[:, :7])(x), net(x))


@pytest.mark.parametrize("name", ["mixed", "norms"])
def test_a_program_has_the_networks_gradients(name):
    net, x = NETWORKS[name]().eval(), torch.randn(6, 7, 5)
    program = read_again(net, x)
    net(x).square().sum().backward()
    program(x).square().sum().backward()
    expected = dict(net.named_parameters(remove_duplicate=False))
    for key, w in program.named_parameters():
        torch.testing.assert_close(w.grad, expected[key].grad)
    learnt = {id(w) for w in net.parameters() if w.grad is not None}
    assert len(list(program.parameters())) == len(learnt)  # tied weights are one; those that are not used are left out


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mixed", "recurrent", "attention"])
def test_a_program_moves_to_a_gpu(name):
    net, x = NETWORKS[name]().eval(), torch.randn(6, 7, 5)
    torch.testing.assert_close(read_again(net, x).cuda()(x.cuda()).cpu(), net(x), rtol=1e-3, atol=1e-4)


def test_regions_are_written_as_their_operators():
    program, _ = to_program(Rotary(), torch.randn(1, 7, 5))
    calls = [step["call"] for step in program["steps"]]
    assert {"aten.cos.default", "aten.sin.default", "aten.einsum.default"} <= set(calls)
    assert not any("wrap" in call for call in calls)
    net, x = Rotary().eval(), torch.randn(6, 9, 5)
    assert torch.equal(read_again(net, x[:, :7])(x), net(x))


def test_a_region_under_autocast_is_refused():
    with pytest.raises(ValueError, match=r"Rotary cannot be written as a graph \(it calls wrap_with_autocast\)"):
        to_program(Rotary(autocast=True), torch.randn(1, 7, 5))


def test_a_program_depends_on_no_device():
    program, _ = to_program(Recurrent(), torch.randn(1, 7, 5))
    assert {"value": "device"} in [step["kwargs"].get("device") for step in program["steps"]]
    assert "cpu" not in json.dumps(program)
    program, _ = to_program(Mixed(), torch.randn(1, 7, 5))  # strides on another device may not allow a view
    assert "aten.reshape.default" in [step["call"] for step in program["steps"]]
    assert "aten.view.default" not in [step["call"] for step in program["steps"]]


class Selects(nn.Module):
    """Columns by a mask in a buffer, and by one that is written in the code."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 3)
        self.register_buffer("mask", torch.tensor([False, True, False, False, False]))

    def forward(self, x):
        return self.last(x.amax(1)[:, ~self.mask][:, torch.tensor([True, False, True, True])])


def test_a_program_runs_without_memory_too():
    x = torch.randn(2, 7, 5)
    for net in (*(make() for make in NETWORKS.values()), Selects()):
        program, constants = to_program(net, x)
        weights = {**net.state_dict(), **dict(net.named_buffers()), **constants}
        made = Program(program, weights)
        assert made.dry_run(x.to("meta"), Budget(0)).shape == made(x).shape


# --- students in files -----------------------------------------------------------------------------------------------


def same(a, b, x) -> bool:
    p, q = a(x), b(x)
    return torch.equal(p.mean, q.mean) and torch.equal(p.log_precision, q.log_precision)


@pytest.mark.parametrize("shared", [False, True])
def test_a_student_comes_back_with_and_without_its_class(shared, tmp_path):
    x = torch.randn(40, 7, 5)
    student = from_teacher(Mixed(), shared_trunk=shared, link="softsign(-3, 8)", example=x[:3]).eval()
    opu.distillation.calibrate(student, x)
    student.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    net = Mixed()
    before = copy.deepcopy(net.state_dict())
    for again in (opu.load(tmp_path), opu.load(tmp_path, backbone=net)):
        assert same(again, student, x)
        assert torch.equal(again.novelty(again(x)), student.novelty(student(x)))
        assert (again.link, again.architecture) == (student.link, student.architecture)
        assert not again.training
    assert all(torch.equal(w, before[name]) for name, w in net.state_dict().items())
    opu.load(tmp_path).save(tmp_path / "again")
    assert same(opu.load(tmp_path / "again"), student, x)


def test_a_loaded_program_is_distilled_further_and_pruned_with_its_class_only(tmp_path):
    net, x = nn.Sequential(nn.Linear(5, 250), nn.Tanh(), nn.Dropout(0.5), nn.Linear(250, 3)), torch.randn(60, 5)
    student = from_teacher(net, example=x)
    student.save(tmp_path)
    again = opu.load(tmp_path)
    recipe = opu.Recipe(epochs=1, batch_size=20, num_particles=4, augment=None)
    opu.distill(opu.teachers.MCDropout(net), again, x, recipe=recipe, progress=False)
    assert not same(again, student, x)
    with pytest.raises(ValueError, match=r"loaded without the class of its network, give that: opu\.load\("):
        prune(again, 0.5)
    prune(opu.load(tmp_path, backbone=net), 0.5)


def test_probabilities_of_the_class_are_made_logits_again(tmp_path):
    net, x = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3), nn.Softmax(-1)), torch.randn(6, 5)
    student = from_teacher(opu.teachers.MCDropout(net, outputs="probabilities"), example=x).eval()
    student.save(tmp_path)
    assert same(opu.load(tmp_path, backbone=copy.deepcopy(net)), student, x)
    assert same(opu.load(tmp_path), student, x)


def test_what_cannot_be_traced_is_saved_for_its_class(tmp_path):
    class ByValue(nn.Linear):
        def forward(self, x):
            return super().forward(x if float(x.sum()) > 0 else -x)

    x = torch.randn(6, 5)
    student = from_teacher(ByValue(5, 3), example=x)
    with pytest.warns(
        UserWarning, match=r"ByValue cannot be written as a graph .*opu\.load\(folder, backbone=net\)"
    ) as seen:
        student.save(tmp_path)
    assert len(seen) == 1
    with pytest.raises(ValueError, match=r"could not be written as a graph; give its class: opu\.load\("):
        opu.load(tmp_path)
    assert same(opu.load(tmp_path, backbone=ByValue(5, 3)), student, x)


def test_inputs_must_be_known_before_it_is_saved(tmp_path):
    student = from_teacher(norms())
    with pytest.raises(ValueError, match="its inputs must be known; distil it first, or give some"):
        student.save(tmp_path / "student")
    assert not (tmp_path / "student").exists()
    student.saw(torch.randn(2, 7, 5))
    student.save(tmp_path / "student")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("student")
    from_teacher(norms(), example=torch.randn(2, 7, 5)).save(folder)
    return folder


def test_another_class_is_refused(saved):
    with pytest.raises(ValueError, match="do not fit their description"):
        opu.load(saved, backbone=Mixed())


def test_a_student_with_weights_that_a_hook_computes_is_saved_after_it_has_run(tmp_path):
    net, x = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(6, 5)
    l1_unstructured(net[0], "weight", 0.5)
    student = from_teacher(net, example=x)
    student(x).mean.sum().backward()
    student.save(tmp_path)
    assert same(opu.load(tmp_path), student, x)


# --- hostile files ---------------------------------------------------------------------------------------------------


def test_none_of_the_operators_touches_files_or_memory_of_others():
    words = (
        "file",
        "save",
        "load",
        "print",
        "set_",
        "resize",
        "strided",
        "unsafe",
        "from_blob",
        "record",
        "data_ptr",
        "empty",
    )
    assert not [name for name in _OPERATORS for word in words if word in name and name != "index_select"]
    assert all(hasattr(torch.ops.aten, name) for name in _OPERATORS)


def step(call="aten.relu.default", args=({"value": "input"},), **kwargs) -> dict:
    return {"name": "a", "call": call, "args": list(args), "kwargs": kwargs}


def program(*steps, weights=(), **changes) -> dict:
    return {"weights": list(weights), "buffers": [], "steps": list(steps) or [step()], "output": "a"} | changes


INJECTED = 'w") or print("injected") or getattr(self, "w'
HOSTILE = {
    "file": program(step("aten.from_file.default", ["/etc/passwd"])),
    "unsafe view": program(step("aten.set_.source_Tensor")),
    "uninitialised memory": program(step("aten.empty.memory_format", [[10]])),
    "another library": program(step("prims.collapse.default")),
    "a module": program(step("os.system.default", ["true"])),
    "attribute of an operator": program(step("aten.relu.__class__")),
    "attribute of the library": program(step("aten.__class__.default")),
    "attribute of a function": program(step("operator.attrgetter", ["__class__"])),
    "repetition": program(step("operator.mul", ["x", 10**10])),
    "formatting": program(step("operator.mod", ["%999999999d", 1])),
    "no dtype": program(step("aten.to.dtype", [{"value": "input"}, {"dtype": "load"}])),
    "no kind": program(step("aten.relu.default", [{"code": "print()"}])),
    "a value of later": program(step(args=[{"value": "b"}])),
    "no output": program(output="b"),
    "no such weight": program(weights=["w"]),
    "name of a method": program(weights=["forward"]),
    "name of a class": program(weights=["__class__"]),
    "name of our own": program(weights=["_steps"]),
    "deep": program(step(args=json.loads("[" * 900 + "]" * 900))),
    "steps in words": program(steps="relu"),
    "a weight twice": program(weights=["w", "w"]),
    "a deep name": program(weights=[".".join("a" * 100)]),
    "nothing": {},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_is_refused(name):
    weights = {key: torch.zeros(1) for key in ("forward", "__class__", "_steps")}
    with pytest.raises(ValueError, match="the graph of this network cannot be read") as refusal:
        Program(HOSTILE[name], weights)
    assert "\n" not in str(refusal.value)


def test_names_are_never_run_as_code(capsys):
    x = torch.randn(2, 3)
    made = Program(program(weights=[INJECTED]), {INJECTED: torch.zeros(1)})
    assert torch.equal(made(x), x.relu())
    with pytest.raises(RuntimeError, match="expected at most 1 argument"):
        Program(program(step("aten.relu.default", [{"value": "input"}], **{"**print('injected')": 1})), {})(x)
    assert "injected" not in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[]", "7", '{"mean_net": {}, "precision_net": {}}'], ids=range(5))
def test_a_garbled_program_in_a_file_is_refused(text, saved, tmp_path):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    edit(tmp_path, lambda _, texts: texts.update(programs=text))
    with pytest.raises(ValueError, match=r"does not fit from_teacher|cannot be read|could not be written") as refusal:
        opu.load(tmp_path)
    assert "\n" not in str(refusal.value)
