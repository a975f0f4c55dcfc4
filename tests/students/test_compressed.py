"""Binary and pruned students are distilled, saved and exported like any other."""

import copy

import pytest
import torch
from torch import nn

import opu
from opu.students import binary_mlp, lenet, mlp, prune
from opu.students.compressed import BinaryLinear, with_plain_layers
from opu.teachers import MCDropout


def teacher() -> MCDropout:
    return MCDropout(nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3)))


def test_a_binary_layer_has_weights_of_two_values_for_each_unit():
    layer = BinaryLinear(5, 4)
    binary = layer.binary_weight()
    torch.testing.assert_close(binary.abs(), layer.weight.abs().mean(1, keepdim=True).expand_as(binary))
    assert torch.equal(binary > 0, layer.weight > 0)
    x = torch.randn(3, 5)
    torch.testing.assert_close(layer(x), x @ binary.T + layer.bias)


def test_gradients_pass_the_signs_straight_through():
    layer, plain = BinaryLinear(5, 4), nn.Linear(5, 4)
    x, direction = torch.randn(7, 5), torch.randn(7, 4)
    (layer(x) * direction).sum().backward()
    (plain(x) * direction).sum().backward()
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad)


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_all_layers_but_the_heads_are_binary(shared_trunk):
    student = binary_mlp(6, 3, (8, 7), shared_trunk=shared_trunk)
    kinds = [type(layer) for layer in student.modules() if isinstance(layer, nn.Linear)]
    assert kinds.count(BinaryLinear) == (2 if shared_trunk else 4)
    heads = (student.mean_net, student.precision_net)
    assert all(type(head if shared_trunk else head[-1]) is nn.Linear for head in heads)


def test_a_binary_student_is_distilled_saved_and_read_again(tmp_path):
    torch.manual_seed(0)
    student, x = binary_mlp(6, 3, (32, 32)), torch.randn(300, 6)
    found = opu.distill(
        teacher(), student, x, recipe=opu.Recipe(epochs=8, batch_size=30, num_particles=16), progress=False
    )
    assert found.held_out[-1] < found.held_out[0]
    student.save(tmp_path)
    again = opu.load(tmp_path)
    assert torch.equal(again(x).mean, student(x).mean)
    assert torch.equal(again.novelty(again(x)), student.novelty(student(x)))


def test_with_plain_layers_it_predicts_the_same():
    student, x = binary_mlp(6, 3, (8, 7)).eval(), torch.randn(5, 6)
    plain = with_plain_layers(copy.deepcopy(student))
    assert not any(isinstance(layer, BinaryLinear) for layer in plain.modules())
    assert torch.equal(plain(x).mean, student(x).mean)
    assert torch.equal(plain(x).log_precision, student(x).log_precision)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_smallest_weights_of_each_layer_are_left_out(share):
    student = mlp(50, 3, (40, 60))
    before = copy.deepcopy(student)
    prune(student, share)
    for ours, theirs in zip(student.modules(), before.modules(), strict=True):
        if isinstance(ours, nn.Linear) and ours.weight.numel() >= 1000:
            gone = ours.weight == 0
            assert int(gone.sum()) == int(share * ours.weight.numel())
            assert torch.equal(ours.weight[~gone], theirs.weight[~gone])
            if share:
                assert theirs.weight[gone].abs().max() <= ours.weight[~gone].abs().min()
        elif isinstance(ours, nn.Linear):
            assert torch.equal(ours.weight, theirs.weight)
    weights = torch.cat([w.flatten() for name, w in student.named_parameters() if name.endswith("weight")])
    assert float((weights == 0).double().mean()) == pytest.approx(share, abs=0.1)


def test_what_is_left_out_stays_out_when_distilled_on_while_the_rest_moves():
    torch.manual_seed(0)
    student, x = mlp(6, 3, (64, 64)), torch.randn(200, 6)
    prune(student, 0.8)
    before = copy.deepcopy(student)
    opu.distill(teacher(), student, x, recipe=opu.Recipe(epochs=3, batch_size=50), progress=False)
    for net, same in ((student.mean_net, before.mean_net), (student.precision_net, before.precision_net)):
        assert int((net[3].weight == 0).sum()) == int(0.8 * 64 * 64)
        assert torch.equal(net[3].weight == 0, same[3].weight == 0)
        assert not torch.equal(net[3].weight, same[3].weight)


def test_convolutions_are_pruned_too():
    student = prune(lenet(3, (1, 16, 16), (20, 50), 30), 0.5)
    convolution = next(layer for layer in student.modules() if isinstance(layer, nn.Conv2d) and layer.in_channels == 20)
    assert int((convolution.weight == 0).sum()) == convolution.weight.numel() // 2


def test_weights_that_are_computed_from_others_are_not_pruned():
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 300)), nn.Tanh(), nn.Linear(300, 3))
    with pytest.raises(ValueError, match="no layer of at least 1000 weights to prune"):
        prune(opu.students.from_teacher(net), 0.5)


@pytest.mark.parametrize("share", [-0.1, 1.0, 80])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match="from 0 to below 1"):
        prune(mlp(4, 3), share)
