"""Where a distillation starts: at the teacher's weights if nobody has trained the student; and what batch norm does."""

import copy

import pytest
import torch
from torch import nn

import opu
from opu.students import Student, as_student, binary_mlp, from_backbone, lenet, mlp, prune
from opu.teachers import Ensemble, Function, MCDropout

RECIPE = opu.Recipe(epochs=1, batch_size=20, num_particles=4, augment=None)


def dropout_mlp(width=8):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 3))


def started(student: Student, teacher, recipe=RECIPE) -> dict[str, torch.Tensor]:
    student.fresh_start(teacher, recipe)
    return {name: w.clone() for name, w in student.mean_net.state_dict().items()}


def has_weights_of(net: nn.Module, student: Student) -> bool:
    ours = nn.ModuleList([m for m in (student.trunk, student.mean_net) if m is not None]).state_dict().values()
    pairs = zip(net.state_dict().values(), ours, strict=True)
    return all(torch.equal(theirs.to(w.dtype), w) for theirs, w in pairs)


UNTRAINED = {
    "mlp": lambda: mlp(4, 3, (8,)),
    "shared trunk": lambda: mlp(4, 3, (8,), shared_trunk=True),
    "binary": lambda: binary_mlp(4, 3, (8,)),
    "float64": lambda: mlp(4, 3, (8,)).double(),
    "precision set": lambda: mlp(4, 3, (8,)).start_precision_at(3.0),
    "copied": lambda: copy.deepcopy(mlp(4, 3, (8,))),
}


@pytest.mark.parametrize("name", UNTRAINED)
def test_untrained_networks_start_from_the_teachers_weights(name):
    """The precision's too, but for its last layer: started so, it tells inputs apart far better (see the study)."""
    net, student = dropout_mlp(), UNTRAINED[name]()
    *_, head = [layer for layer in student.precision_net.modules() if isinstance(layer, nn.Linear)]
    before = copy.deepcopy(head.state_dict())
    student.fresh_start(MCDropout(net), RECIPE)
    assert has_weights_of(net, student)
    if student.trunk is None:
        assert torch.equal(student.precision_net[1].weight, net[0].weight.to(student.precision_net[1].weight.dtype))
    assert all(torch.equal(w, before[key]) for key, w in head.state_dict().items())


def precision_trained(student: Student) -> Student:
    with torch.no_grad():
        student.precision_net[1].bias += 0.1
    return student


def trained(student: Student) -> Student:
    with torch.no_grad():
        next(student.mean_net.parameters())[0, 0] += 0.1
    return student


def loaded_weights(student: Student) -> Student:
    student.load_state_dict(mlp(4, 3, (8,)).state_dict())
    return student


OTHERS = {
    "trained a little": lambda: trained(mlp(4, 3, (8,))),
    "precision trained": lambda: precision_trained(mlp(4, 3, (8,))),
    "weights of the user's": lambda: loaded_weights(mlp(4, 3, (8,))),
    "started by hand": lambda: mlp(4, 3, (8,)).start_mean_from(dropout_mlp()),
    "pruned": lambda: prune(mlp(4, 3, (8, 400)), 0.5),
    "on a backbone": lambda: from_backbone(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), 8, 3),
    "put together by hand": lambda: Student(dropout_mlp(), dropout_mlp()[:1]),
    "other shapes": lambda: mlp(4, 3, (9,)),
    "another architecture": lambda: lenet(3, (1, 16, 16), (2, 3), 7),
}


@pytest.mark.parametrize("name", OTHERS)
def test_all_other_students_keep_their_weights(name):
    student = OTHERS[name]()
    before = copy.deepcopy(student.state_dict())
    student.fresh_start(MCDropout(dropout_mlp()), RECIPE)
    assert all(torch.equal(w, before[key]) for key, w in student.state_dict().items())


def test_a_saved_student_is_never_started_anew(tmp_path):
    mlp(4, 3, (8,)).save(tmp_path)
    student = opu.load(tmp_path)
    before = copy.deepcopy(student.state_dict())
    student.fresh_start(MCDropout(dropout_mlp()), RECIPE)
    assert all(torch.equal(w, before[key]) for key, w in student.state_dict().items())


def test_a_second_distillation_goes_on_from_the_first():
    teacher, student, x = MCDropout(dropout_mlp()), mlp(4, 3, (8,)), torch.randn(60, 4)
    opu.distill(teacher, student, x, recipe=RECIPE, progress=False)
    before = copy.deepcopy(student.mean_net.state_dict())
    assert all(torch.equal(w, before[name]) for name, w in started(student, teacher).items())


def test_the_recipe_can_leave_random_weights_and_a_teacher_without_a_network_does():
    for teacher, recipe in (
        (MCDropout(dropout_mlp()), opu.Recipe(start_from_teacher=False)),
        (Function(lambda x, n: torch.randn(n, len(x), 3).log_softmax(-1)), RECIPE),
    ):
        student = mlp(4, 3, (8,))
        before = copy.deepcopy(student.mean_net.state_dict())
        assert all(torch.equal(w, before[name]) for name, w in started(student, teacher, recipe).items())


def test_from_an_ensemble_it_is_the_first_member():
    members = [dropout_mlp(), dropout_mlp()]
    student = mlp(4, 3, (8,)).fresh_start(Ensemble(members), RECIPE)
    assert has_weights_of(members[0], student)


# --- batch norm ------------------------------------------------------------------------------------------------------


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())


def statistics(module: nn.Module) -> list[torch.Tensor]:
    return [w.clone() for name, w in module.state_dict().items() if "running" in name]


@pytest.mark.parametrize("trained", [False, True])
def test_batch_norm_keeps_statistics_that_it_came_with_and_learns_others(trained):
    trunk, x = with_norm(), torch.randn(60, 4)
    if trained:
        trunk(x)
        trunk[1].num_batches_tracked.zero_()  # as in files from before torch counted
    student = from_backbone(trunk, 6, 3)
    before, scale = statistics(student), student.trunk[1].weight.clone()
    opu.distill(MCDropout(dropout_mlp()), student, x, recipe=RECIPE, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(before, statistics(student), strict=True)) == trained
    assert not torch.equal(scale, student.trunk[1].weight)


def test_a_users_own_module_keeps_its_statistics_too():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = from_backbone(with_norm(), 6, 3)

        def forward(self, x):
            return self.net(x)

    module, x = Own(), torch.randn(60, 4)
    module(x)
    before = statistics(module)
    opu.distill(MCDropout(dropout_mlp()), module, x, recipe=RECIPE, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(before, statistics(module), strict=True))
    assert as_student(module).layers_to_keep() == ["module.net.trunk.1"]


def test_a_resumed_run_treats_batch_norm_as_it_did_at_first(tmp_path, monkeypatch):
    """The same student object, whose batch norm has statistics by the time that the run goes on."""
    recipe = opu.Recipe(epochs=3, batch_size=20, num_particles=4, augment=None)

    def run(student: Student, **options) -> None:
        torch.manual_seed(0)
        opu.distill(MCDropout(net), student, x, recipe=recipe, progress=False, **options)

    net, x, whole = dropout_mlp(), torch.randn(60, 4), from_backbone(with_norm(), 6, 3)
    broken = copy.deepcopy(whole)
    run(whole)
    update, calls = opu.distillation.state.Run.update, []

    def killed(self, *args):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return update(self, *args)

    monkeypatch.setattr(opu.distillation.state.Run, "update", killed)
    with pytest.raises(KeyboardInterrupt):
        run(broken, out=tmp_path / "run")
    monkeypatch.undo()
    run(broken, out=tmp_path / "run", resume=True)
    ends = broken.state_dict()
    assert all(torch.equal(w, ends[name]) for name, w in whole.state_dict().items())
