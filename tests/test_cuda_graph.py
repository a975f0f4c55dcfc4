"""CUDA graphs: they do what the function does. Without a GPU, a stand-in for the replay shows all that surrounds it."""

from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest
import torch

from opu import cuda_graph
from opu.acceleration.captured import Captured
from opu.acceleration.stacked import Stacked
from opu.cuda_graph import WARM_UP, CudaGraph
from opu.students import mlp


@pytest.fixture
def _without_a_gpu(monkeypatch):
    """A replay is a call that writes its output where the capture wrote it."""
    for name in ("Stream", "CUDAGraph", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    for name in ("device", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: nullcontext())
    monkeypatch.setattr(CudaGraph, "replay", lambda self: self._output.copy_(self._function(*self._placeholders)))


@pytest.mark.usefixtures("_without_a_gpu")
def test_three_calls_warm_up_and_the_fourth_captures():
    graph = CudaGraph(lambda x, y: x + y)
    outputs = []
    for number in range(WARM_UP + 3):
        outputs.append(graph(torch.full((2,), float(number)), torch.ones(2)))
        assert outputs[-1].tolist() == [number + 1.0] * 2
    assert len({id(each) for each in outputs[:WARM_UP]}) == WARM_UP
    assert len({id(each) for each in outputs[WARM_UP:]}) == 1  # overwritten from then on
    with pytest.raises(AssertionError, match="one shape"):
        graph(torch.ones(1), torch.ones(2))


@pytest.mark.usefixtures("_without_a_gpu")
def test_inputs_are_converted_into_the_placeholder():
    placeholder = torch.zeros(3)
    graph = CudaGraph(torch.exp).capture(placeholder)
    x = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(graph(x), x.float().exp())
    torch.testing.assert_close(placeholder, x.float())


@pytest.mark.usefixtures("_without_a_gpu")
def test_a_captured_backend_has_outputs_of_its_own_and_takes_other_shapes():
    example = torch.randn(5, 3, 4)
    backend = Stacked(mlp(12, 3, (8, 7)))
    captured = Captured.for_example(backend, example)
    batches = example, 2 * example, example[:3], example.repeat(2, 1, 1)
    for x, found in zip(batches, [captured(x) for x in batches], strict=True):
        for ours, theirs in zip(found, backend(x), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert torch.equal(captured.placeholder, 2 * example)


@pytest.mark.usefixtures("_without_a_gpu")
def test_what_cannot_be_captured_costs_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", MagicMock(side_effect=RuntimeError("operation not permitted\nmore")))
    with pytest.raises(RuntimeError, match=r"captured as a CUDA graph \(operation not permitted\); .* Run it without"):
        CudaGraph(torch.exp).capture(torch.zeros(3))


def test_a_cpu_has_no_graphs():
    assert cuda_graph.captured(torch.exp, torch.device("cpu")) is torch.exp
    assert not cuda_graph.being_captured(torch.zeros(1))


@pytest.mark.gpu
def test_a_graph_does_what_the_function_does():
    weights = [torch.zeros(3, device="cuda") for _ in range(2)]
    rate = torch.zeros((), device="cuda")

    def step(weight):
        def move(x):
            weight.add_(rate * x)
            return weight.sum()

        return move

    graph, plain = cuda_graph.captured(step(weights[0]), rate.device), step(weights[1])
    for number in range(10):
        rate.fill_(1 / (1 + number))
        x = torch.randn(3, device="cuda")
        torch.testing.assert_close(graph(x), plain(x))
    torch.testing.assert_close(*weights)
    with pytest.raises(AssertionError, match="one shape"):
        graph(torch.ones(1, device="cuda"))


@pytest.mark.gpu
def test_a_graph_captured_at_once_reads_its_placeholder():
    placeholder = torch.zeros(3, device="cuda", dtype=torch.bfloat16)
    seen = []

    def function(x):
        seen.append(cuda_graph.being_captured(x))
        return 2 * x

    graph = CudaGraph(function, placeholder.device).capture(placeholder)
    assert seen == [False] * WARM_UP + [True]
    assert graph(torch.full((3,), 1.5)).tolist() == [3.0] * 3  # float32 from the CPU
    placeholder.fill_(4.0)
    graph.replay()
    assert graph._output.tolist() == [8.0] * 3
    assert len(seen) == WARM_UP + 1
