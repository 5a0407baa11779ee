"""The stack of another thread is read without keeping the objects of its functions alive."""

from __future__ import annotations

import threading
import weakref

import pytest

from hotlap.observe.stacks import Call, Stacks, calls_of, users_call

SITE = "/env/lib/python3.12/site-packages"
WRITTEN = f"""\
Thread 0x00007f0000000001 [loader] (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 355 in wait

Thread 0x00007f00000000aa (most recent call first):
  File "{SITE}/torch/nn/modules/linear.py", line 125 in forward
  File "{SITE}/annas_models/net.py", line 7 in forward
  File "/home/ann/my "project"/train.py", line 12 in <module>

Current thread 0x00007f0000000002 (most recent call first):
  File "/hotlap/stacks.py", line 1 in calls
"""


class Held:
    """Stands for a tensor and can be weakly referenced."""


@pytest.fixture
def paused():
    """A thread inside two functions, one of which holds an object; the event lets it continue."""
    inside, go_on, held = threading.Event(), threading.Event(), []

    def inner():
        something = Held()
        held.append(weakref.ref(something))
        inside.set()
        go_on.wait(10)

    thread = threading.Thread(target=lambda: inner())
    thread.start()
    inside.wait(10)
    yield thread, go_on, held[0]
    go_on.set()
    thread.join()


def test_the_calls_of_the_given_thread_are_read_innermost_first():
    linear, net, train = calls_of(WRITTEN, 0x7F00000000AA)
    assert linear == Call(f"{SITE}/torch/nn/modules/linear.py", 125, "forward")
    assert net.line == 7
    assert train == Call('/home/ann/my "project"/train.py', 12, "<module>")


def test_a_thread_that_has_ended_has_no_calls():
    assert calls_of(WRITTEN, 0x7F00000000BB) == []


def test_the_users_own_line_takes_precedence_over_an_installed_program():
    linear, net, train = calls_of(WRITTEN, 0x7F00000000AA)
    assert users_call([linear, net, train]) == train
    assert users_call([linear, net]) == net
    assert users_call([linear]) is None


def test_file_names_that_are_not_ascii_are_decoded():
    """faulthandler escapes them, but a line is matched with its source by the name of the file."""
    file, function = r"/home/jos\xe9/\u5b66\u7fd2/\U0001f680.py", r"f\xfcr"
    written = f'Thread 0x01 (most recent call first):\n  File "{file}", line 3 in {function}\n'
    assert calls_of(written, 1) == [Call("/home/josé/学習/🚀.py", 3, "für")]


def test_a_running_thread_is_found_in_the_users_function(paused):
    thread, _, _ = paused
    stacks = Stacks(thread.ident)
    found = [users_call(stacks.calls()), users_call(stacks.calls())]
    stacks.close()
    assert found[0] == found[1]
    assert found[0].file == __file__
    assert found[0].function == "inner"


def test_objects_held_by_the_watched_function_are_freed_when_it_returns(paused):
    """A frame object would keep the locals of the thread alive, among them the tensors of a recorded graph."""
    thread, go_on, held = paused
    stacks = Stacks(thread.ident)
    calls = stacks.calls()
    go_on.set()
    thread.join()
    assert calls
    assert held() is None
    stacks.close()
