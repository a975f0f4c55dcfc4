"""Weight samples against a loop over ``load_state_dict``."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from opu.teachers import WeightSamples
from opu.teachers.modes import bytes_per_row


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def with_buffers() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 3)
    )


NETS = {"plain": (plain, (4,)), "batch norm": (with_buffers, (1, 4))}


def samples_of(make, count: int = 5) -> list[dict[str, Tensor]]:
    samples = []
    for _ in range(count):
        net = make()
        for child in net.modules():
            if isinstance(child, nn.BatchNorm1d):
                child.running_mean.normal_()
                child.running_var.uniform_(0.5, 2)
                child.num_batches_tracked += 7
        samples.append(copy.deepcopy(net.state_dict()))
    return samples


def stacked(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def loop(net: nn.Module, samples: list[dict[str, Tensor]], x: Tensor) -> Tensor:
    """The slow reference."""
    net = copy.deepcopy(net).eval()
    outputs = []
    with torch.no_grad():
        for sample in samples:
            net.load_state_dict(sample)
            outputs.append(net(x).log_softmax(-1))
    return torch.stack(outputs)


@pytest.mark.parametrize("form", [list, stacked], ids=["list", "stacked"])
@pytest.mark.parametrize(("make", "shape"), NETS.values(), ids=NETS)
def test_equals_a_loop_over_load_state_dict(make, shape, form):
    samples, x = samples_of(make), torch.randn(7, *shape)
    net = make().train()  # batch norm must use its running statistics and dropout must be off all the same
    particles = WeightSamples(net, form(samples))(x, 5)
    torch.testing.assert_close(particles, loop(net, samples, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("make", "shape"), NETS.values(), ids=NETS)
@pytest.mark.parametrize("rows_at_once", [0, 1, 7, 15, 10_000])
def test_chunks_change_nothing(make, shape, rows_at_once):
    net, samples, x = make(), samples_of(make), torch.randn(7, *shape)
    budget = max(1, rows_at_once * bytes_per_row(net, x))
    particles = WeightSamples(net, samples, memory_budget=budget)(x, 5)
    torch.testing.assert_close(particles, loop(net, samples, x), rtol=1e-5, atol=1e-5)


def test_average_weights_are_the_mean_and_the_last_count():
    samples = samples_of(with_buffers, 3)
    for step, sample in enumerate(samples):
        sample["1.num_batches_tracked"] = torch.tensor(10 + step)
    average = WeightSamples(with_buffers(), samples).average_weights()
    assert average.keys() == samples[0].keys()
    for name, w in average.items():
        if w.is_floating_point():
            torch.testing.assert_close(w, (samples[0][name] + samples[1][name] + samples[2][name]) / 3)
    assert int(average["1.num_batches_tracked"]) == 12
    with_buffers().load_state_dict(average)


def test_particles_do_not_depend_on_the_networks_own_weights():
    samples, x = samples_of(plain), torch.randn(3, 4)
    first, second = plain(), plain()
    assert torch.equal(WeightSamples(first, samples)(x, 5), WeightSamples(second, samples)(x, 5))


def test_later_changes_to_a_list_of_samples_do_not_reach_the_teacher():
    """A sampler that goes on updates its tensors in place; the posterior samples must not move with it."""
    net, x = plain(), torch.randn(3, 4)
    samples = [net.state_dict(), samples_of(plain, 1)[0]]
    teacher = WeightSamples(net, samples)
    before = teacher(x, 2)
    with torch.no_grad():
        for w in net.parameters():
            w.add_(1)
    assert torch.equal(teacher(x, 2), before)


def test_outputs_may_be_probabilities():
    samples, x = samples_of(plain), torch.randn(3, 4)
    with_softmax = nn.Sequential(*plain(), nn.Softmax(-1))
    particles = WeightSamples(with_softmax, samples, outputs="probabilities")(x, 5)
    torch.testing.assert_close(particles, loop(plain(), samples, x), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="announced as logits but lie on the simplex"):
        WeightSamples(with_softmax, samples)(x, 5)


# --- refusals --------------------------------------------------------------------------------------------------------


def test_an_empty_list_is_refused():
    with pytest.raises(ValueError, match="needs at least one state dict; got an empty list"):
        WeightSamples(plain(), [])


def test_a_stack_of_no_samples_is_refused():
    none = {name: w.new_empty(0, *w.shape) for name, w in plain().state_dict().items()}
    with pytest.raises(ValueError, match="at least one"):
        WeightSamples(plain(), none)


def test_samples_that_differ_among_themselves_are_refused():
    samples = samples_of(plain, 3)
    del samples[2]["0.bias"]
    with pytest.raises(ValueError, match=r"number 2 differs in \['0.bias'\]"):
        WeightSamples(plain(), samples)


@pytest.mark.parametrize("form", [list, stacked], ids=["list", "stacked"])
def test_names_that_the_network_does_not_have_are_refused(form):
    samples = [{f"module.{name}": w for name, w in sample.items()} for sample in samples_of(plain, 2)]
    with pytest.raises(ValueError, match="must have the names of the network's state dict; they differ in"):
        WeightSamples(plain(), form(samples))


def test_one_state_dict_without_an_axis_of_samples_is_refused():
    with pytest.raises(ValueError, match=r"'0.weight' has shape \(6, 4\), expected was \(S, 6, 4\)"):
        WeightSamples(plain(), plain().state_dict())


def test_weights_of_other_shapes_are_refused():
    wider = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match=r"leading axis of samples .* '0.weight' has shape \(2, 6, 5\)"):
        WeightSamples(plain(), samples_of(lambda: wider, 2))


def test_different_numbers_of_samples_are_refused():
    samples = stacked(samples_of(plain, 4))
    samples["2.bias"] = samples["2.bias"][:3]
    with pytest.raises(ValueError, match="must have a leading axis of samples"):
        WeightSamples(plain(), samples)


def test_a_stacked_count_without_an_axis_of_samples_is_refused():
    samples = stacked(samples_of(with_buffers, 2))
    samples["1.num_batches_tracked"] = torch.tensor(3)
    with pytest.raises(ValueError, match="must have a leading axis of samples"):
        WeightSamples(with_buffers(), samples)


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_with_any_byte_changed_is_refused_or_holds_the_same(tmp_path):
    path, damaged, net = tmp_path / "samples", tmp_path / "damaged", nn.Linear(2, 2)
    WeightSamples(net, samples_of(lambda: nn.Linear(2, 2), 2)).save(path)
    content, first = path.read_bytes(), WeightSamples.load(net, path).samples
    refusals = []
    for place, byte in enumerate(content):
        damaged.write_bytes(content[:place] + bytes([byte ^ 1]) + content[place + 1 :])
        try:
            again = WeightSamples.load(net, damaged).samples
        except ValueError as refusal:
            refusals.append(str(refusal))
        else:
            assert all(torch.equal(again[name], w) for name, w in first.items())
    assert len(refusals) > 0.9 * len(content)
    assert not any("\n" in each for each in refusals)


def test_a_file_from_before_there_were_checksums_is_read():
    teacher = WeightSamples.load(nn.Linear(2, 2), Path(__file__).parents[1] / "saved" / "weight-samples.safetensors")
    assert teacher.num_samples == 3
    assert torch.equal(teacher.samples["bias"], torch.tensor([[0.5, 0.5], [1.5, 1.5], [2.5, 2.5]]))
