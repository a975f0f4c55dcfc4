"""Modes of networks that several threads use: each finds them as it needs them, and all are as before in the end."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import opu
from opu.teachers import MCDropout
from opu.teachers.modes import changing, evaluating, without_draws


def test_every_mode_is_restored_even_after_an_error():
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train()
    net[0].eval()
    with evaluating(net):
        assert not any(child.training for child in net.modules())
        assert not net[0](torch.zeros(1, 2)).requires_grad
    with pytest.raises(RuntimeError), evaluating(net):
        net(torch.zeros(1, 3))
    assert [child.training for child in net.modules()] == [True, False, True]


@pytest.fixture(autouse=True)
def _threads_switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work, num_threads=4):
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(work, range(num_threads)))


@pytest.mark.parametrize("train", [False, True])
def test_a_student_predicts_the_same_in_many_threads_and_keeps_its_modes(train):
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    student = opu.students.Student(net, nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1)))
    student.train(train)
    student.mean_net[0].train(not train)
    modes = [child.training for child in student.modules()]
    x = torch.randn(6, 4)
    wanted = student.predict(x).probabilities
    student.known_conversions.clear()
    found = in_threads(lambda _: [student.predict(x).probabilities for _ in range(40)])
    assert all((each == wanted).all() for part in found for each in part)
    assert [child.training for child in student.modules()] == modes


def test_networks_in_evaluation_mode_are_read_at_the_same_time():
    net, together = nn.Linear(2, 2).eval(), threading.Barrier(3, timeout=30)

    def work(_):
        with evaluating(net):
            together.wait()  # would time out if they took turns
        return True

    assert all(in_threads(work, 3))


def test_a_network_that_is_evaluated_for_another_thread_is_not_taken_for_one_in_evaluation_mode():
    """A second thread comes while the first has switched the modes; it must not lose them when the first is done."""
    net, first_is_in, first_may_go = nn.Dropout(0.5).train(), threading.Event(), threading.Event()
    seen = []

    def first():
        with evaluating(net):
            first_is_in.set()
            first_may_go.wait(30)

    def second():
        with evaluating(net):
            first_may_go.set()
            seen.extend(net.training for _ in range(2000))

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first)
        first_is_in.wait(30)
        two = pool.submit(second)
        threading.Timer(0.1, first_may_go.set).start()  # the second waits for the first
        one.result(30)
        two.result(30)
    assert len(seen) == 2000
    assert not any(seen)
    assert net.training


def test_threads_that_wait_for_each_others_networks_go_on():
    """Each reads one network and then wants to change the other's."""
    a, b = nn.Linear(2, 2).eval(), nn.Linear(2, 2).eval()
    both = threading.Barrier(2, timeout=30)

    def work(number):
        mine, other = (a, b) if number else (b, a)
        with evaluating(mine):
            both.wait()
            with changing(other):
                other.training = True
                other.training = False
            assert not mine.training
        return True

    with ThreadPoolExecutor(2) as pool:
        assert all(each.result(30) for each in [pool.submit(work, number) for number in range(2)])


def test_who_changes_a_network_has_it_alone():
    net, inside, most = nn.Linear(2, 2).eval(), [], []

    def work(number):
        for _ in range(50):
            with changing(net) if number % 2 else evaluating(net):
                inside.append(number)
                now = list(inside)
                most.append(len(now) if any(each % 2 for each in now) else 1)
                inside.remove(number)

    in_threads(work)
    assert max(most) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have():
    net, inside, done = nn.Linear(2, 2), threading.Event(), threading.Event()

    def hold():
        with changing(net):
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(30)
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(20)  # ends the process if it waits
        with evaluating(net):
            os._exit(0)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join(30)
    assert status == 0


# --- random numbers --------------------------------------------------------------------------------------------------


def test_random_numbers_that_another_thread_drew_do_not_come_again():
    """Masks for several chunks of rows, and the first look at a network, once set the random state back."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    student = opu.students.mlp(4, 3, (8,)).eval()
    x, stop = torch.randn(5, 4), threading.Event()

    def draw():
        numbers = []
        while not stop.is_set() and len(numbers) < 200_000:
            numbers.append(float(torch.rand((), dtype=torch.float64)))
        return numbers

    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(draw)
        for _ in range(60):
            student.known_conversions.clear()
            student.predict(x)
            MCDropout(net)(x, 3)
            MCDropout(net, consistent=True, memory_budget=1)(x, 3)
        stop.set()
        numbers = drawn.result(60)
    assert len(numbers) > 500
    assert len(set(numbers)) == len(numbers)


def test_masks_for_several_chunks_of_rows_are_the_same_while_another_thread_draws():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    x, stop = torch.ones(6, 4), threading.Event()

    def draw():
        while not stop.is_set():
            torch.rand(3)

    thread = threading.Thread(target=draw)
    thread.start()
    teacher = MCDropout(net, consistent=True, memory_budget=1)
    found = [teacher(x, 4) for _ in range(40)]
    stop.set()
    thread.join(30)
    for particles in found:  # six equal rows, each in a chunk of its own
        torch.testing.assert_close(particles, particles[:, :1].expand_as(particles), rtol=0, atol=1e-6)


@pytest.mark.parametrize("draws", [False, True])
def test_a_block_without_draws_restores_what_this_thread_drew_and_nothing_else(draws):
    state, restored = torch.get_rng_state(), []

    def restore():
        restored.append(True)
        torch.set_rng_state(state)

    with without_draws(restore):
        nn.functional.dropout(torch.ones(3), 0.5, training=draws)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(torch.rand, 3).result()
    assert bool(restored) == draws
