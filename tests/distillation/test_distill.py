"""What distill promises: any inputs, any updates, held-out selection, a log, and refusals that lose nothing."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import opu
from opu.distillation.diagnosis import Diverged, stuck
from opu.objectives import CriticEMD


def make_net(num_features=4, num_classes=3, dropout=0.5):
    return nn.Sequential(nn.Linear(num_features, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, num_classes))


@pytest.fixture
def teacher():
    return opu.teachers.MCDropout(make_net(), consistent=True)


@pytest.fixture
def inputs():
    return torch.randn(96, 4)


def run(teacher, inputs, **options):
    student = opu.students.mlp(4, 3, (16,))
    return student, distill(teacher, student, inputs, **options)


def distill(teacher, student, inputs, held_out=0.1, out=None, resume=False, **recipe):
    """A small distillation; settings that are not named here are the recipe's."""
    recipe = opu.Recipe(**({"epochs": 2, "batch_size": 16, "num_particles": 8} | recipe))
    return opu.distill(
        teacher, student, inputs, recipe=recipe, held_out=held_out, out=out, resume=resume, progress=False
    )


def weights(student):
    return {name: w.clone() for name, w in student.state_dict().items()}


def test_the_student_comes_close_to_its_teacher(teacher, inputs):
    student, result = run(teacher, inputs, epochs=60, num_particles=32, learning_rate=1e-2)
    particles = teacher(inputs, 2000)
    before = opu.students.mlp(4, 3, (16,))
    distance = opu.objectives.ExactMMD()
    with torch.no_grad():
        learned = distance(inputs, particles, student(inputs)).mean()
        untrained = distance(inputs, particles, before(inputs)).mean()
        gap = (student(inputs).mean - opu.measures.mean(particles)).abs().mean()
    assert learned < 0.1 * untrained
    assert gap < 0.03
    assert result.held_out[-1] < result.held_out[0]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: x.numpy(),
        lambda x: TensorDataset(x, torch.zeros(len(x))),
        lambda x: list(x.split(10)),
        lambda x: (part for part in x.split(10)),
    ],
    ids=["tensor", "array", "dataset with labels", "list of batches", "generator"],
)
def test_inputs_in_memory_of_every_kind_give_the_same_run(teacher, inputs, wrap):
    torch.manual_seed(3)
    start = weights(opu.students.mlp(4, 3, (16,)))
    predictions = []
    for given in (inputs, wrap(inputs)):
        torch.manual_seed(5)
        student = opu.students.mlp(4, 3, (16,))
        student.load_state_dict(start)
        torch.manual_seed(7)
        distill(teacher, student, given, epochs=2, batch_size=16, num_particles=4)
        predictions.append(student(inputs).mean)
    torch.testing.assert_close(*predictions)


@pytest.mark.parametrize("options", [{}, {"updates": "alternating"}, {"bank": 16}, {"bank": 16, "augment": None}])
def test_every_kind_of_update_lowers_the_held_out_objective(teacher, inputs, options):
    _, result = run(teacher, inputs, epochs=30, learning_rate=1e-2, **options)
    assert min(result.held_out) < result.held_out[0]
    # A bank holds as many augmented inputs as plain ones, so an epoch over it is twice as long.
    rows = 87 * (2 if options.get("bank") and "augment" not in options else 1)
    assert len(result.losses) == 30 * (rows // 16)


def test_alternating_updates_move_one_network_at_a_time(teacher, inputs):
    moved = []

    def noting(parameters):
        parameters = list(parameters)
        moved.append(parameters)
        return torch.optim.SGD(parameters, 1e-2)

    student = opu.students.mlp(4, 3, (16,))
    distill(teacher, student, inputs, epochs=1, updates="alternating", optimizer=noting)
    for found, net in zip(moved, (student.mean_net, student.precision_net), strict=True):
        assert {id(p) for p in found} == {id(p) for p in net.parameters()}


def test_a_better_epoch_is_kept_and_not_the_last(teacher, inputs):
    """A learning rate that ruins the student at the end must not cost the good epochs before it."""

    class Ruin(torch.optim.SGD):
        steps = 0

        def step(self, closure=None):
            Ruin.steps += 1
            if Ruin.steps > 30:  # the last epochs push the weights to nonsense
                with torch.no_grad():
                    for group in self.param_groups:
                        for p in group["params"]:
                            p.add_(0.5)
                return None
            return super().step(closure)

    with pytest.warns(UserWarning, match=r"epoch \d of 10 was kept, since the last is clearly worse"):
        student, result = run(teacher, inputs, epochs=10, optimizer=lambda p: Ruin(p, 1e-2))
    assert result.best_epoch <= 6
    assert result.held_out[result.best_epoch - 1] < result.held_out[-1] - 1
    assert max(float(w.abs().max()) for w in weights(student).values()) < 5, "these are the weights of the last epoch"


def test_a_critic_is_no_judge_of_epochs_so_the_last_one_is_kept(teacher, inputs):
    # Its own value grows as it learns, and the first epoch would look best.
    _, result = run(teacher, inputs, objective=CriticEMD(critic_steps=2, hidden=8), epochs=5)
    assert result.best_epoch == 5


def test_an_epoch_whose_value_is_not_a_number_is_never_the_best(teacher, inputs):
    class Breaking(opu.objectives.BaseObjective):
        values = iter([3.0, float("nan"), 2.0, 5.0])

        def __call__(self, x, log_particles, q):
            if torch.is_grad_enabled():
                return q.log_precision.square()
            return torch.full((len(x),), next(self.values))

    _, result = run(teacher, inputs, objective=Breaking(), epochs=4)
    assert result.best_epoch == 3


def test_novelty_is_calibrated_on_the_held_out_inputs(teacher, inputs):
    student, _ = run(teacher, inputs, held_out=torch.randn(200, 4))
    p_values = student.novelty.p_value(student(torch.randn(2000, 4)))
    assert 0.01 < float((p_values < 0.05).float().mean()) < 0.12


def test_a_student_can_be_distilled_again(teacher, inputs, tmp_path):
    """Its old calibration is neither in the way nor kept."""
    student, _ = run(teacher, inputs, held_out=0.5)
    before = student.novelty.scores
    for resume in (False, True):
        distill(teacher, student, inputs, epochs=2, out=tmp_path / "run", resume=resume, held_out=0.3)
    assert len(student.novelty.scores) == int(0.3 * len(inputs)) != len(before)


def test_a_log_line_for_each_step_and_the_settings_are_written(teacher, inputs, tmp_path):
    _, result = run(teacher, inputs, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, len(result.losses) + 1))
    assert [line["loss"] for line in steps] == result.losses
    assert [line["held_out"] for line in lines if "held_out" in line] == result.held_out
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["distill"]["objective"] == "0.333*clipped_kl + 10*mmd"


def test_a_bank_of_stored_particles_is_aligned_with_the_inputs(inputs):
    """Each input's particles sit around a mean of its own; a misaligned bank would teach the mean of all."""
    labels = torch.arange(len(inputs)) % 3
    logits = 4.0 * torch.nn.functional.one_hot(labels, 3) + 0.5 * torch.randn(50, len(inputs), 3)
    x = torch.nn.functional.one_hot(labels, 4).float() + 0.05 * inputs
    bank = opu.teachers.ParticleBank(logits.softmax(-1).numpy())
    student = opu.students.mlp(4, 3, (16,))
    distill(bank, student, x, epochs=60, batch_size=16, learning_rate=1e-2)
    assert (student(x).mean.argmax(-1) == labels).all()


def test_a_nan_stops_the_run_and_leaves_the_last_good_checkpoint(teacher, inputs, tmp_path):
    calls = 0

    def poisoned(x, log_particles, q):
        nonlocal calls
        calls += 1
        value = opu.objectives.ForwardKL()(x, log_particles, q)
        return value * (torch.nan if torch.is_grad_enabled() and calls > 9 else 1.0)

    with pytest.raises(Diverged, match=r"at step \d+, the loss of .*poisoned.* is not finite"):
        run(teacher, inputs, epochs=4, objective=poisoned, out=tmp_path / "run")
    state = opu.files.read_state(tmp_path / "run" / "checkpoint" / "latest.safetensors")
    assert state["step"] == 5
    assert all(bool(torch.isfinite(w).all()) for w in state["student"].values())


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda p: p * torch.nan, "NaN particles"),
        (lambda p: torch.where(p == p.min(), -torch.inf, p), "probability of exactly 0"),
    ],
)
def test_the_likely_cause_of_a_nan_is_named(teacher, inputs, spoil, cause):
    calls = 0

    def later_broken(x, num_particles):
        nonlocal calls
        calls += 1
        particles = teacher(x, num_particles)
        return spoil(particles) if calls > 4 else particles

    with pytest.raises(Diverged, match=cause):
        run(later_broken, inputs, objective="kl")


def test_a_runaway_precision_is_named(teacher, inputs):
    student = opu.students.mlp(4, 3, (16,), link="exp")

    def overflowing(x, log_particles, q):
        return torch.exp(torch.exp(q.log_precision) * 1e3) * torch.inf

    with torch.no_grad():
        student.precision_net[-1].bias.fill_(60.0)
    with pytest.raises(Diverged, match="log-precision ran away to"):
        distill(teacher, student, inputs, objective=overflowing, epochs=1)


def refuse(match, teacher, inputs, **options):
    with pytest.raises(ValueError, match=match):
        run(teacher, inputs, **options)


def test_bad_inputs_are_refused(teacher):
    refuse("at least one row", teacher, torch.empty(0, 4))
    refuse("at least one row", teacher, [])
    refuse("batch with at least one row and one feature", teacher, torch.empty(5, 0))
    spoiled = torch.randn(20, 4)
    spoiled[7, 2] = torch.nan
    refuse("NaN or infinite features in 1 of 20 rows, the first at row 7", teacher, spoiled)
    refuse("infinite", teacher, torch.full((20, 4), torch.inf))
    refuse(r"cannot read inputs of shape \(8, 5\)", teacher, torch.randn(20, 5))


def test_bad_teachers_are_refused(inputs):
    still = make_net()
    refuse(
        "must be random, but its 32 particles are identical for all of 96 inputs",
        lambda x, s: still.eval()(x).log_softmax(-1).expand(s, -1, -1),
        inputs,
    )
    refuse("three axes", lambda x, s: torch.zeros(len(x), 3), inputs)
    refuse(
        "predicts 3 classes but the teacher gives particles for 5",
        opu.teachers.MCDropout(make_net(num_classes=5)),
        inputs,
    )
    refuse("one column for each of the 8 inputs", lambda x, s: torch.randn(s, 3, 3).log_softmax(-1), inputs)
    refuse("got plain probabilities", lambda x, s: torch.randn(s, len(x), 3).softmax(-1), inputs)
    refuse("If these are logits", lambda x, s: 5 * torch.randn(s, len(x), 3), inputs)
    refuse("NaN", lambda x, s: torch.full((s, len(x), 3), torch.nan), inputs)
    refuse("must return a tensor", lambda x, s: np.zeros((s, len(x), 3)), inputs)
    refuse("at least two classes", lambda x, s: torch.zeros(s, len(x), 1), inputs)


def test_bad_settings_are_refused(teacher, inputs):
    refuse(
        "kl, clipped_kl, cross_entropy, mmd, mmd_polynomial, mmd_sampled, emd, sinkhorn; got 'elbo'",
        teacher,
        inputs,
        objective="elbo",
    )
    refuse("num_particles must be at least 1", teacher, inputs, num_particles=0)
    refuse("epochs must be at least 1", teacher, inputs, epochs=0)
    refuse("augmented_fraction", teacher, inputs, augmented_fraction=1.5)
    refuse("schedule must be cosine, constant or steps", teacher, inputs, schedule="linear")
    refuse("updates must be joint or alternating", teacher, inputs, updates="both")
    refuse("held_out must be a fraction", teacher, inputs, held_out=1.0)
    refuse("resume needs the folder", teacher, inputs, resume=True)
    refuse("augment must be", teacher, inputs, augment="much")
    refuse("augment must be", teacher, inputs, augment="None")
    refuse("learning_rate must be a positive number; got -1", teacher, inputs, learning_rate=-1.0)
    with pytest.raises(ValueError, match="alternating updates need a student"):
        distill(teacher, nn.Linear(4, 3), inputs, updates="alternating")


def test_a_stored_bank_cannot_label_augmented_inputs(inputs):
    bank = opu.teachers.ParticleBank(torch.rand(5, 96, 3).softmax(-1), inputs)
    refuse("Pass the inputs it was made for", bank, inputs, augment=opu.augment.default_transform(inputs))


def test_an_output_folder_with_something_in_it_is_left_alone(teacher, inputs, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    refuse("exists and is not empty; nothing in it was changed", teacher, inputs, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
    refuse("is a file", teacher, inputs, out=tmp_path / "precious.txt")
    refuse("cannot be made", teacher, inputs, out=tmp_path / "precious.txt" / "run")
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_a_mistake_leaves_no_folder_behind(teacher, inputs, tmp_path):
    refuse(r"held_out must have rows like the inputs, of shape \(4,\); got \(5,\)", teacher, inputs,
           held_out=torch.randn(20, 5), out=tmp_path / "run")  # fmt: skip
    with pytest.raises(
        ValueError, match=r"called as teacher\(x, num_particles\), which failed .* opu.teachers.MCDropout"
    ):
        run(make_net(), inputs, out=tmp_path / "run")
    with pytest.raises(ValueError, match="a student must predict a Dirichlet for each input; this one gives a Tensor"):
        distill(teacher, nn.Linear(4, 3), inputs, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_objective_of_ones_own_is_known_by_its_name(teacher, inputs, tmp_path):
    """Its address in memory is another one in the next process."""
    run(teacher, inputs, objective=lambda x, p, q: q.log_precision.square(), out=tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["distill"]
    assert "<lambda>" in settings["objective"]
    assert "0x" not in settings["objective"]


@pytest.mark.parametrize("change", [{"optimizer": "sgd"}, {"augment": opu.augment.features.noise},
                                    {"start_from_teacher": False}, {"blend": opu.novelty.FOR_IMAGES}])  # fmt: skip
def test_a_run_is_not_resumed_with_another(change, teacher, inputs, tmp_path):
    run(teacher, inputs, out=tmp_path / "run")
    (name,) = change
    refuse(f"{name} was .* and is .* now", teacher, inputs, out=tmp_path / "run", resume=True, **change)
    # A run that began before these were kept goes on.
    config = tmp_path / "run" / "config.json"
    settings = json.loads(config.read_text())
    del settings["distill"][name]
    config.write_text(json.dumps(settings))
    run(teacher, inputs, out=tmp_path / "run", resume=True)


def test_a_run_is_resumed_with_its_own_settings_only(teacher, inputs, tmp_path):
    run(teacher, inputs, out=tmp_path / "run")
    refuse("epochs was 2 and is 3 now", teacher, inputs, out=tmp_path / "run", epochs=3, resume=True)


def test_the_critic_is_kept_in_the_checkpoint(teacher, inputs, tmp_path):
    options = {"objective": CriticEMD(critic_steps=1, hidden=8), "checkpoint_every": 3, "out": tmp_path / "run"}
    torch.manual_seed(11)
    whole, _ = run(teacher, inputs, **options)
    torch.manual_seed(12)  # another start: everything must come from the checkpoint
    options["objective"] = CriticEMD(critic_steps=1, hidden=8)
    resumed, _ = run(teacher, inputs, resume=True, **options)
    for name, w in whole.state_dict().items():
        assert torch.equal(w, resumed.state_dict()[name]), name


@pytest.mark.parametrize(
    ("bound", "value", "advice"),
    [("upper", 7.0, "student.fit_bounds(teacher, x)"), ("lower", -2.0, "or use clipped_kl")],
)
def test_a_precision_that_ends_at_a_bound_is_said_with_what_to_do(bound, value, advice):
    link = opu.students.Softsign()
    inside = torch.linspace(-1.0, 6.0, 200)
    assert stuck(link, inside) is None
    middle = torch.linspace(0.0, 4.0, 200)
    assert stuck(link, torch.cat([middle[:30], torch.full((170,), value)])) is None
    found = stuck(link, torch.cat([middle[:10], torch.full((190,), value)]))
    assert found is not None
    assert f"95% of the held-out inputs is at the {bound} bound of the student's link, {value:g}" in found
    assert advice in found
    assert stuck(opu.students.Exp(), torch.full((200,), value)) is None


@pytest.mark.parametrize("link", ["sigmoid", "softsign"])
def test_a_teacher_that_is_surer_than_the_link_allows_gives_a_warning(inputs, link):
    net = make_net(dropout=0.0)

    def nearly_one_network(x, num_particles):
        noise = 1e-4 * torch.randn(num_particles, len(x), 3)
        return (net(x).detach() + noise).log_softmax(-1)

    student = opu.students.mlp(4, 3, (16,), link=link)
    with pytest.warns(UserWarning, match="is at the upper bound of the student's link, 7: it tells them apart no more"):
        distill(nearly_one_network, student, inputs, epochs=60, learning_rate=3e-2, held_out=inputs)


def test_a_run_does_not_go_on_with_another_link(teacher, inputs, tmp_path):
    run(teacher, inputs, out=tmp_path / "run")
    student = opu.students.mlp(4, 3, (16,), link="sigmoid")
    with pytest.raises(ValueError, match=r"link was .*softsign\(-2.0, 7.0\).* and is .*sigmoid\(-2.0, 7.0\).* now"):
        distill(
            teacher,
            student,
            inputs,
            out=tmp_path / "run",
            resume=True,
        )
