"""Rows shared among threads: each of them once, errors included, also after a fork."""

import os
import signal

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


def test_both(count):
    done = []
    for work in (1, 1 << 30):
        threads.both(work, lambda: done.append("first"), lambda: done.append("second"))
    assert sorted(done) == ["first", "first", "second", "second"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_has_threads_of_its_own(count):
    threads.in_parts(50, threads.WORTHWHILE, lambda start, stop: None)
    child = os.fork()
    if not child:
        signal.alarm(600)  # a pool without threads would wait for ever
        threads.in_parts(50, threads.WORTHWHILE, lambda start, stop: None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
