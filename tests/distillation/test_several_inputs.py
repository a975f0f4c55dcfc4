"""Networks with several inputs: tuples, dicts and dataclasses of tensors on the whole way from teacher to report."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import opu
from opu.cli import main
from opu.fidelity import report
from opu.students import from_teacher
from opu.teachers import Ensemble, MCDropout, ParticleBank, WeightSamples
from tests.several_inputs import ImageAndTable, OfDataclass, Visit

RECIPE = opu.Recipe(epochs=1, batch_size=16, num_particles=4)


class OfDict(ImageAndTable):
    def forward(self, batch):
        return super().forward(batch["image"], batch["table"])


class Nested(ImageAndTable):
    def forward(self, batch):
        return super().forward(batch["scan"]["image"], batch["table"])


class TwoImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop, self.last = nn.Conv2d(1, 4, 3), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, left, right):
        seen = [self.conv(image).relu().mean((2, 3)) for image in (left, right)]
        return self.last(self.drop(torch.cat(seen, -1)))


def image(rows):
    return torch.randn(rows, 1, 8, 8)


def table(rows):
    return torch.randn(rows, 4)


CASES = {
    "tuple": (ImageAndTable, lambda rows: (image(rows), table(rows))),
    "two images": (TwoImages, lambda rows: (image(rows), image(rows))),
    "dict as keywords": (ImageAndTable, lambda rows: {"image": image(rows), "table": table(rows)}),
    "dict as one argument": (OfDict, lambda rows: {"image": image(rows), "table": table(rows)}),
    "dataclass": (OfDataclass, lambda rows: Visit(image(rows), table(rows))),
    "nested": (Nested, lambda rows: {"scan": {"image": image(rows)}, "table": table(rows)}),
}
cases = pytest.mark.parametrize("name", CASES)


def build(name, rows=40):
    make, inputs = CASES[name]
    return make().eval(), inputs(rows)


def run(*words, monkeypatch):
    monkeypatch.setattr("sys.argv", ["opu", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@cases
def test_the_way_from_teacher_to_report(name, tmp_path, monkeypatch, capsys):
    net, x = build(name)
    teacher = MCDropout(net)
    student = from_teacher(teacher, example=x)
    with torch.no_grad():
        torch.testing.assert_close(student(x).mean, opu.batches.scores(net, x).softmax(-1))
    opu.distill(teacher, student, x, recipe=RECIPE, held_out=0.5, out=tmp_path / "run", progress=False)
    predicted = student.predict(x)
    assert predicted.novelty_p_value.shape == (40,)
    again = opu.load(tmp_path / "run").predict(x)
    np.testing.assert_array_equal(again.probabilities, predicted.probabilities)
    np.testing.assert_array_equal(again.novelty_p_value, predicted.novelty_p_value)
    on_class = opu.load(tmp_path / "run", backbone=CASES[name][0]()).predict(x)
    np.testing.assert_allclose(on_class.probabilities, predicted.probabilities, rtol=1e-6)

    found = report(student, teacher, x, num_particles=50)
    assert found.summary["num_inputs"] == 40
    assert found.summary["mmd"]["total"] > 0
    assert run("fidelity", tmp_path / "run", monkeypatch=monkeypatch) == 0, capsys.readouterr().err
    written = json.loads((tmp_path / "run" / "fidelity.json").read_text())
    assert (written["num_inputs"], written["num_particles"]) == (20, RECIPE.num_particles)
    assert "amortisation_on_seen_inputs" in written
    assert (tmp_path / "run" / "fidelity.png").stat().st_size > 10_000


@cases
def test_a_cascade_asks_the_teacher_about_rows_of_all_parts(name):
    net, x = build(name)
    student, asked = from_teacher(net, example=x).eval(), []

    def teacher(part, num_particles):
        asked.append(part)
        return torch.zeros(num_particles, opu.batches.num_rows(part), 3).log_softmax(-1)

    cascade = opu.Cascade(student, teacher, budget=0.25, num_particles=5).calibrate(x)
    prediction = cascade(x)
    rows = torch.from_numpy(prediction.by_teacher.nonzero()[0])
    assert 0 < len(rows) <= 10
    for ours, theirs in zip(opu.batches.tensors(opu.batches.take(x, rows)).values(), parts(asked), strict=True):
        assert torch.equal(ours, theirs)
    np.testing.assert_allclose(prediction.probabilities[rows.numpy()], 1 / 3, rtol=1e-6)


def parts(asked):
    (batch,) = asked
    return opu.batches.tensors(batch).values()


@cases
def test_particles_in_a_bank_belong_to_whole_inputs(name):
    net, x = build(name)
    particles = MCDropout(net)(x, 20)
    bank = ParticleBank(particles, x, outputs="log_probabilities")
    order = torch.randperm(40)
    shuffled = opu.batches.take(x, order)
    found = bank(shuffled, 20).exp()
    torch.testing.assert_close(found, particles[:, order].exp())
    student = from_teacher(net, example=x)
    losses = opu.distill(bank, student, x, recipe=RECIPE, progress=False).losses
    assert all(np.isfinite(losses))
    first, *others = opu.batches.tensors(x).values()
    mixed = opu.batches.rebuild(
        x, [first, *(each.roll(1, 0) for each in others)]
    )  # each part is known, the whole is not
    with pytest.raises(ValueError, match="40 of 40 inputs are others"):
        bank(mixed, 4)


@cases
def test_a_recipe_with_a_bank_draws_once(name):
    net, x = build(name)
    calls = []

    class Counting(MCDropout):
        def __call__(self, x, num_particles):
            calls.append(num_particles)
            return super().__call__(x, num_particles)

    teacher, recipe = Counting(net), opu.Recipe(epochs=5, batch_size=16, num_particles=4, bank=20)
    opu.distill(teacher, from_teacher(net, example=x), x, recipe=recipe, progress=False)
    assert calls.count(20) == 2  # the inputs, and as many augmented ones


@pytest.mark.parametrize("objective", ["kl", "emd", "sinkhorn", "mmd_sampled"])
def test_every_kind_of_objective_takes_several_parts(objective):
    net, x = build("tuple")
    recipe = opu.Recipe(objective=objective, epochs=1, batch_size=16, num_particles=4)
    losses = opu.distill(MCDropout(net), from_teacher(net, example=x), x, recipe=recipe, progress=False).losses
    assert all(np.isfinite(losses))


def test_the_critic_of_emd_refuses_sequences_of_several_lengths():
    objective = opu.objectives.CriticEMD()
    q = opu.Dirichlet.from_logits(torch.zeros(2, 3), torch.zeros(2))
    particles = torch.randn(4, 2, 3).log_softmax(-1)
    objective({"input_ids": torch.ones(2, 5)}, particles, q)
    with pytest.raises(ValueError, match=r"it has seen 5 numbers per input, and now got 7\. For sequences"):
        objective({"input_ids": torch.ones(2, 7)}, particles, q)


TEACHERS = {
    "ensemble": Ensemble,
    "weight samples": lambda nets: WeightSamples(ImageAndTable(), [net.state_dict() for net in nets]),
}


@pytest.mark.parametrize("make", TEACHERS.values(), ids=TEACHERS.keys())
def test_teachers_over_weights_read_several_parts(make):
    nets, x = [ImageAndTable().eval() for _ in range(3)], CASES["tuple"][1](6)
    teacher = make(nets)
    with torch.no_grad():
        expected = {tuple(net(*x).log_softmax(-1).flatten().tolist()) for net in nets}
    found = {tuple(each.flatten().tolist()) for each in teacher(x, 3)}
    for each in found:
        assert min(np.abs(np.subtract(each, other)).max() for other in expected) < 1e-5
    by_name = dict(zip(("image", "table"), x, strict=True))
    student = from_teacher(teacher, example=by_name)
    opu.distill(teacher, student, by_name, recipe=RECIPE, held_out=0, progress=False)
    assert student.predict(by_name).probabilities.shape == (6, 3)


def test_a_loader_of_tuples_with_labels_gives_its_first_parts():
    net, (images, tables) = build("tuple")
    data = TensorDataset(images, tables, torch.randint(3, (40,)))
    student = from_teacher(net, example=next(iter(DataLoader(data, 4))))
    opu.distill(MCDropout(net), student, DataLoader(data, 8, shuffle=True), recipe=RECIPE, progress=False)
    expected = student.predict((images, tables)).probabilities
    np.testing.assert_allclose(student.predict(DataLoader(data, 8)).probabilities, expected, rtol=1e-6)
    np.testing.assert_allclose(student.predict(data).probabilities, expected, rtol=1e-6)


def test_floating_point_parts_are_augmented_and_integers_and_masks_are_not():
    seen = {}

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.drop, self.last = nn.Embedding(9, 4), nn.Dropout(0.3), nn.Linear(8, 3)

        def forward(self, words, table, attention_mask):
            held = self.words(words).mul(attention_mask[..., None]).mean(1)
            return self.last(self.drop(torch.cat([held, table], -1)))

    x = {"words": torch.randint(9, (32, 5)), "table": table(32), "attention_mask": torch.ones(32, 5)}
    net = Watched().eval()
    teacher = MCDropout(net)

    def watching(batch, num_particles):
        for name, t in batch.items():
            seen.setdefault(name, []).append(t)
        return teacher(batch, num_particles)

    opu.distill(watching, from_teacher(net, example=x), x, recipe=RECIPE, progress=False)
    known = {name: {tuple(row) for row in t.tolist()} for name, t in x.items()}
    new = {name: any(tuple(row) not in known[name] for t in seen[name] for row in t.tolist()) for name in seen}
    assert new == {"words": False, "table": True, "attention_mask": False}


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_missing_and_unknown_parts_are_refused(tmp_path):
    net, x = build("dict as keywords")
    student = from_teacher(net, example=x).eval()
    student.save(tmp_path)
    again, fewer = opu.load(tmp_path), {"image": x["image"]}
    with pytest.raises(ValueError, match=r"cannot read inputs of parts image \(.*missing.*'table'"):
        student.predict(fewer)
    with pytest.raises(ValueError, match="have the parts image, table; table is missing, and image was given"):
        again.predict(fewer)
    for each in (student, again):
        with pytest.raises(ValueError, match=r"takes image, table, but the inputs hold 'sound' \(shape \(40, 7\)\)"):
            each.predict({**x, "sound": torch.randn(40, 7)})


def test_an_example_and_inputs_that_do_not_fit_are_refused_in_one_line():
    net, x = build("tuple")
    for example, message in [
        (x[0], r"the network cannot read inputs of shape \(40, 1, 8, 8\) \(.*missing"),
        ((x[0], x[1][:, :3]), r"the network cannot read inputs of parts 0 \(40, 1, 8, 8\), 1 \(40, 3\)"),
        ((x[0][:2], x[1]), "all parts of an input must have the same number of rows; 0 has 2, 1 has 40"),
    ]:
        with pytest.raises(ValueError, match=message) as refused:
            from_teacher(net, example=example)
        assert "\n" not in str(refused.value)
    student = from_teacher(net, example=x)
    with pytest.raises(ValueError, match="same number of rows; 0 has 40, 1 has 39"):
        opu.distill(MCDropout(net), student, (x[0], x[1][:-1]), recipe=RECIPE, progress=False)
    with pytest.raises(ValueError, match="takes 2 inputs, but each item has 3 parts"):
        opu.distill(MCDropout(net), student, (*x, torch.randn(40, 6)), recipe=RECIPE, progress=False)
