"""Kernels are compiled on threads of hotlap's, which end by themselves."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

from hotlap.kernels.cuda.beside import Beside


def test_all_jobs_run_and_the_end_is_told_once_even_if_some_fail() -> None:
    done: list[int] = []
    told, ends = [], threading.Event()

    def job(number: int) -> None:
        if number % 3 == 0:
            raise ValueError(number)
        done.append(number)

    Beside([partial(job, number) for number in range(12)], lambda: (told.append(1), ends.set()))
    assert ends.wait(60)
    assert sorted(done) == [number for number in range(12) if number % 3]
    assert told == [1]


def test_without_jobs_it_ends_at_once() -> None:
    told: list[int] = []
    Beside([], lambda: told.append(1))
    assert told == [1]


def test_a_process_that_ends_waits_for_the_job_under_way_and_begins_no_other() -> None:
    program = """
import os, threading, time
from functools import partial
from hotlap.kernels.cuda import beside
beside.usable_cores = lambda: 1
begun = threading.Event()
def job(number):
    os.write(1, b"begins %d\\n" % number)
    begun.set()
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    os.write(1, b"ends %d\\n" % number)
beside.Beside([partial(job, number) for number in range(3)], lambda: None)
begun.wait()
os.write(1, b"main ends\\n")
"""
    found = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    assert found.stdout.splitlines() == ["begins 0", "main ends", "ends 0"]
