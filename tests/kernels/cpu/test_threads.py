"""Rows shared among threads: each of them once, errors included, also after a fork."""

import os
import signal
import sys

import pytest
import torch

from torchldr.kernels.cpu import threads


@pytest.fixture(params=[1, 2, 5])
def count(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [0, 1, 3, 50])
def test_every_row_once(count, rows):
    parts = []
    threads.in_parts(rows, threads.WORTHWHILE, lambda start, stop: parts.append((start, stop)))
    assert sorted(i for start, stop in parts for i in range(start, stop)) == list(range(rows))
    assert len(parts) == max(1, min(count, rows))


def test_little_work_stays_here(count):
    parts = []
    threads.in_parts(50, 1, lambda start, stop: parts.append((start, stop)))
    assert parts == [(0, 50)]


def test_errors_come_out(count):
    def call(start, stop):
        if stop == 50:
            raise ValueError("the last row")

    with pytest.raises(ValueError, match="the last row"):
        threads.in_parts(50, threads.WORTHWHILE, call)


def test_torch_and_parts_take_turns(count):
    """A team serves both; so does a pool, where there is no team."""
    x, found = torch.randn(300, 300), torch.empty(50)
    for _ in range(3):
        call = lambda start, stop: found[start:stop].copy_(x[start:stop, 0])
        threads.in_parts(50, threads.WORTHWHILE, call)
        torch.testing.assert_close(found, x[:50, 0])
        found.zero_()
        assert (x @ x).isfinite().all()


def test_without_a_team(count, monkeypatch):
    monkeypatch.setattr(threads, "_parallel", lambda: None)
    test_every_row_once(count, 50)
    test_errors_come_out(count)


@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP here")
def test_there_is_a_team():
    assert threads._parallel() is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_has_threads_of_its_own(count):
    threads.in_parts(50, threads.WORTHWHILE, lambda start, stop: None)
    child = os.fork()
    if not child:
        signal.alarm(600)  # a pool without threads would wait for ever
        threads.in_parts(50, threads.WORTHWHILE, lambda start, stop: None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
