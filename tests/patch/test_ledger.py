"""The ledger undoes every change, even where other tools changed the same object. Each scenario has its own process."""

from __future__ import annotations

import pytest

from tests.patch.subprocesses import run_python

THINGS = """
class Base:
    def inherited(self): return "inherited"
    @staticmethod
    def inherited_static(): return "static"
    @classmethod
    def inherited_class(cls): return cls.__name__
    def __bool__(self): return True

class Thing(Base):
    def own(self): return "own"
    @staticmethod
    def own_static(): return "static"
    @classmethod
    def own_class(cls): return cls.__name__
"""


def test_closing_restores_classes_modules_and_instances():
    run_python(
        THINGS
        + """
import math, textwrap
thing = Thing()
owners = (Base, Thing, thing, textwrap, math)
before = snapshot(*owners)
ledger = Ledger()
for owner, name in ((Thing, "own"), (Thing, "inherited"), (thing, "own"), (textwrap, "dedent"), (math, "sqrt")):
    ledger.wrap(owner, name, shout)
assert Thing().own() == "ours(own)"
assert Thing().inherited() == "ours(inherited)"
assert Base().inherited() == "inherited"
assert thing.own() == "ours(ours(own))"
assert math.sqrt(4) == "ours(2.0)" and textwrap.dedent(" a") == "ours(a)"
ledger.close()
assert_same(before, *owners)
assert Thing().own() == thing.own() == "own" and math.sqrt(4) == 2.0
"""
    )


def test_static_and_class_methods_keep_their_kind_whether_own_or_inherited():
    run_python(
        THINGS
        + """
before = snapshot(Base, Thing)
ledger = Ledger()
for name in ("own_static", "own_class", "inherited_static", "inherited_class"):
    ledger.wrap(Thing, name, lambda original: type(original)(shout(original.__func__)))
for call in (Thing, Thing()):
    assert call.own_static() == call.inherited_static() == "ours(static)"
    assert call.own_class() == call.inherited_class() == "ours(Thing)"
assert Base.inherited_static() == "static"
ledger.close()
assert_same(before, Base, Thing)
assert Thing().own_static() == Thing().inherited_static() == "static"
"""
    )


def test_slots_of_the_interpreter_follow_the_patch_and_its_removal():
    """`bool(x)` and `len(x)` go through C slots, which Python must update both ways."""
    run_python(
        THINGS
        + """
class Longer(Thing):
    def __len__(self): return 3

def negated(original):
    def ours(self): return not original(self)
    return ours

before = snapshot(Base, Thing, Longer)
ledger = Ledger()
ledger.wrap(Thing, "__bool__", negated)
ledger.wrap(Longer, "__len__", lambda original: lambda self: 2 * original(self))
assert not Thing() and Base() and len(Longer()) == 6
ledger.close()
assert_same(before, Base, Thing, Longer)
assert Thing() and len(Longer()) == 3
"""
    )


def test_method_descriptors_of_torch_tensors(run_torch):
    run_torch(
        """
import torch
before = snapshot(torch.Tensor, torch._C.TensorBase)
seen = []
def watched(original):
    @functools.wraps(original)
    def ours(self, *args, **kwargs):
        seen.append(original.__name__)
        return original(self, *args, **kwargs)
    return ours

ledger = Ledger()
for name in ("item", "__bool__", "__getitem__", "to", "__repr__"):
    ledger.wrap(torch.Tensor, name, watched)
one = torch.ones(1)
assert one.item() == 1.0 and bool(one) and one[0] == 1 and one.to(torch.int64).item() == 1
assert {"item", "__bool__", "__getitem__", "to"} <= set(seen)
ledger.close()
assert_same(before, torch.Tensor, torch._C.TensorBase)
seen.clear()
assert bool(one) and one[0].item() == 1 and repr(one)
assert not seen
"""
    )


def test_two_patches_by_one_ledger_stack_and_are_both_removed():
    run_python(
        THINGS
        + """
before = snapshot(Thing)
ledger = Ledger()
ledger.wrap(Thing, "own", shout)
ledger.wrap(Thing, "own", shout)
assert Thing().own() == "ours(ours(own))"
ledger.close()
assert_same(before, Thing)
"""
    )


@pytest.mark.parametrize(("first", "left"), [("lower", "upper(own)"), ("upper", "lower(own)")])
def test_two_ledgers_close_in_either_order(first, left):
    run_python(
        THINGS
        + f"""
def named(name):
    return lambda original: lambda self: f"{{name}}({{original(self)}})"

before = snapshot(Thing)
ledgers = dict(lower=Ledger(), upper=Ledger())
for name, ledger in ledgers.items():
    ledger.wrap(Thing, "own", named(name))
assert Thing().own() == "upper(lower(own))"
ledgers.pop("{first}").close()
assert Thing().own() == "{left}"
ledgers.popitem()[1].close()
assert_same(before, Thing)
"""
    )


OTHER_TOOLS = {
    "a closure with functools.wraps": """
def install():
    original = Thing.own
    @functools.wraps(original)
    def tool(self): return f"tool({original(self)})"
    Thing.own = tool
    def restore(): Thing.own = original
    return restore
""",
    "wrapt": """
def install():
    original = vars(Thing)["own"]
    Thing.own = wrapt.FunctionWrapper(original, lambda wrapped, instance, args, kwargs: f"tool({wrapped()})")
    def restore(): Thing.own = vars(Thing)["own"].__wrapped__
    return restore
""",
    "a module global": """
def install():
    global SAVED
    SAVED = Thing.own
    def tool(self): return f"tool({SAVED(self)})"
    Thing.own = tool
    def restore(): Thing.own = SAVED
    return restore
""",
    "an attribute of an instance": """
class Tool:
    def __init__(self): self.saved = Thing.own
    def call(self, thing): return f"tool({self.saved(thing)})"
    def restore(self): Thing.own = self.saved

def install():
    tool = Tool()
    Thing.own = lambda self: tool.call(self)
    return tool.restore
""",
    "a slot of an instance": """
class Tool:
    __slots__ = ("saved",)

def install():
    tool = Tool()
    tool.saved = Thing.own
    Thing.own = lambda self: f"tool({tool.saved(self)})"
    def restore(): Thing.own = tool.saved
    return restore
""",
    "an attribute of a class": """
class Tool:
    saved = Thing.own

def install():
    Tool.saved = Thing.own
    Thing.own = lambda self: f"tool({Tool.saved(self)})"
    def restore(): Thing.own = Tool.saved
    return restore
""",
    "a default argument": """
def install():
    def tool(self, original=Thing.own): return f"tool({original(self)})"
    Thing.own = tool
    def restore(): Thing.own = tool.__defaults__[0]
    return restore
""",
    "a functools.partial": """
def install():
    saved = functools.partial(Thing.own)
    Thing.own = lambda self: f"tool({saved(self)})"
    def restore(): Thing.own = saved.func
    return restore
""",
    "a list": """
def install():
    saved = [Thing.own]
    Thing.own = lambda self: f"tool({saved[0](self)})"
    def restore(): Thing.own = saved[0]
    return restore
""",
}


@pytest.mark.parametrize("tool", OTHER_TOOLS)
def test_another_tool_on_top_survives_closing_and_restores_the_true_original(tool):
    run_python(
        THINGS
        + OTHER_TOOLS[tool]
        + """
original = vars(Thing)["own"]
before = snapshot(Thing)
ledger = Ledger()
ledger.wrap(Thing, "own", shout)
restore = install()
on_top = vars(Thing)["own"]
assert Thing().own() == "tool(ours(own))"
ledger.close()
assert vars(Thing)["own"] is on_top
assert Thing().own() == "tool(own)"
assert_gone(on_top, restore)
restore()
assert vars(Thing)["own"] is original
assert_same(before, Thing)
"""
    )


def test_another_tool_may_leave_before_closing():
    run_python(
        THINGS
        + OTHER_TOOLS["wrapt"]
        + """
before = snapshot(Thing)
ledger = Ledger()
ledger.wrap(Thing, "own", shout)
install()()
assert Thing().own() == "ours(own)"
ledger.close()
assert_same(before, Thing)
"""
    )


def test_another_tool_underneath_that_leaves_first_is_not_restored():
    run_python(
        THINGS
        + """
original = vars(Thing)["own"]
Thing.own = lambda self: f"tool({original(self)})"
ledger = Ledger()
ledger.wrap(Thing, "own", shout)
assert Thing().own() == "ours(tool(own))"
Thing.own = original
ledger.close()
assert vars(Thing)["own"] is original
"""
    )


def test_restores_an_inherited_attribute_under_another_tool():
    run_python(
        THINGS
        + """
ledger = Ledger()
ledger.wrap(Thing, "inherited", shout)
saved = Thing.inherited
Thing.inherited = lambda self: f"tool({saved(self)})"
ledger.close()
assert Thing().inherited() == "tool(inherited)"
assert saved is vars(Base)["inherited"]
"""
    )


def test_one_ledger_closes_below_another_tool_while_a_second_stays():
    run_python(
        THINGS
        + OTHER_TOOLS["a closure with functools.wraps"]
        + """
first, second = Ledger(), Ledger()
first.wrap(Thing, "own", shout)
second.wrap(Thing, "own", shout)
restore = install()
assert Thing().own() == "tool(ours(ours(own)))"
first.close()
assert Thing().own() == "tool(ours(own))"
second.close()
assert Thing().own() == "tool(own)"
"""
    )


def test_a_bound_method_kept_elsewhere_calls_the_original_after_closing():
    """`saved = thing.method` creates a bound method of the function that hotlap installed."""
    run_python(
        THINGS
        + """
thing = Thing()
ledger = Ledger()
ledger.wrap(Thing, "own", shout)
kept = dict(method=thing.own)
Thing.own = lambda self: "tool"
ledger.close()
assert kept["method"]() == "own"
assert_gone(kept)
"""
    )


def test_hidden_patches_are_removed_and_come_back():
    run_python(
        THINGS
        + """
before = snapshot(Base, Thing)
ledger = Ledger()
ledger.wrap(Thing, "own", shout)
ledger.wrap(Thing, "inherited", shout)
with ledger.hidden():
    assert_same(before, Base, Thing)
assert Thing().own() == "ours(own)" and Thing().inherited() == "ours(inherited)"
try:
    with ledger.hidden():
        raise KeyError
except KeyError:
    pass
assert Thing().own() == "ours(own)"
ledger.close()
assert_same(before, Base, Thing)
"""
    )


def test_patches_closed_while_hidden_do_not_come_back():
    run_python(
        THINGS
        + """
before = snapshot(Base, Thing)
ledger = Ledger()
ledger.wrap(Thing, "own", shout)
ledger.wrap(Thing, "inherited", shout)
with ledger.hidden():
    ledger.close()
assert_same(before, Base, Thing)
"""
    )


def test_another_tool_that_wraps_while_patches_are_hidden_keeps_its_place():
    run_python(
        THINGS
        + OTHER_TOOLS["a closure with functools.wraps"]
        + """
before = snapshot(Thing)
ledger = Ledger()
ledger.wrap(Thing, "own", shout)
with ledger.hidden():
    restore = install()
assert Thing().own() == "tool(own)"
ledger.close()
assert Thing().own() == "tool(own)"
restore()
assert_same(before, Thing)
"""
    )


def test_releasing_one_attribute_leaves_the_others():
    run_python(
        THINGS
        + """
before = snapshot(Thing)
ledger, other = Ledger(), Ledger()
ledger.wrap(Thing, "own", shout)
ledger.wrap(Thing, "inherited", shout)
other.release(Thing, "own")  # not its own: nothing happens
assert Thing().own() == "ours(own)"
ledger.release(Thing, "own")
ledger.release(Thing, "own")
ledger.release(Thing, "never patched")
assert Thing().own() == "own" and Thing().inherited() == "ours(inherited)"
ledger.close()
assert_same(before, Thing)
"""
    )


def test_closing_is_idempotent_and_a_closed_ledger_changes_nothing():
    run_python(
        THINGS
        + """
undone = []
before = snapshot(Thing)
ledger = Ledger()
ledger.later(lambda: undone.append("first"))
ledger.later(lambda: undone.append("second"))
ledger.wrap(Thing, "own", shout)
ledger.close()
ledger.close()
assert undone == ["second", "first"] and ledger.closed
ledger.wrap(Thing, "own", shout)
assert_same(before, Thing)
"""
    )


def test_a_failing_undo_does_not_prevent_the_others():
    run_python(
        THINGS
        + """
before = snapshot(Thing)
undone = []
ledger = Ledger()
ledger.wrap(Thing, "own", shout)
ledger.later(lambda: undone.append(1))
ledger.later(lambda: 1 / 0)
try:
    ledger.close()
except ZeroDivisionError:
    undone.append("told")
assert undone == [1, "told"]
assert_same(before, Thing)
"""
    )


def test_the_same_object_can_be_patched_again_after_closing():
    run_python(
        THINGS
        + """
before = snapshot(Thing)
for _ in range(3):
    ledger = Ledger()
    ledger.wrap(Thing, "own", shout)
    assert Thing().own() == "ours(own)"
    ledger.close()
assert_same(before, Thing)
"""
    )
