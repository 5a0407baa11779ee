"""A plan in the user's process applies its entries in order, reports them, and can be undone entirely."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hotlap import catalog
from hotlap.catalog.entry import Entry, Stage, WholeNumber
from hotlap.catalog.fused_optimizer import proof
from hotlap.control import applied_plan as room
from hotlap.control.applied_plan import AppliedPlan, difference, lines
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.records.plan import Choice, Circumstances, Outcome, Risk
from hotlap.records.session import Session


@pytest.fixture
def seams():
    opened = Seams(torch, Guard(strict=False))
    opened.open()
    yield opened
    opened.close()


@pytest.fixture
def planted(monkeypatch):
    """Adds entries to the catalogue for one test, by name."""

    def plant(**by_name):
        found = {
            name.replace("_", "-"): Entry(
                code=f"X{number}",
                title="",
                risk=Risk.EXACT,
                detect=lambda seen: None,
                values=WholeNumber(1, 9),
                **parts,
            )
            for number, (name, parts) in enumerate(by_name.items(), 101)
        }
        ordered = catalog.in_order(found)
        monkeypatch.setattr(catalog, "entries", lambda: ordered)
        monkeypatch.setattr(room, "entries", lambda: ordered)

    return plant


def train(steps: int) -> list[float]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = model(torch.ones(2, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def choices(*names: str) -> list[Choice]:
    return [Choice(name=name) for name in names]


def by_name(running: AppliedPlan) -> dict[str, str]:
    return {outcome.name: outcome.status for outcome in running.outcomes}


def test_entries_are_applied_in_the_order_they_request(planted, seams):
    applied = []
    planted(
        late={"apply": lambda site: applied.append(site.name), "stage": Stage.LAST},
        early={"apply": lambda site: applied.append(site.name), "stage": Stage.PROCESS},
    )
    AppliedPlan(torch, choices("late", "early"), seams).begin()
    assert applied == ["early", "late"]


def test_the_value_reaches_the_entry(planted, seams):
    seen = []
    planted(one={"apply": lambda site: seen.append(site.value)})
    AppliedPlan(torch, [Choice(name="one", value="7")], seams).begin()
    assert seen == [7]


def test_an_entry_that_fails_to_apply_is_withdrawn_and_the_others_stay(planted, seams):
    planted(broken={"apply": lambda site: 1 / 0}, sound={"apply": lambda site: site.applied("well")})
    running = AppliedPlan(torch, choices("broken", "sound"), seams)
    running.begin()
    assert by_name(running) == {"broken": "withdrawn", "sound": "applied"}
    assert len(train(8)) == 8


@pytest.mark.parametrize(
    ("parts", "why"), [({"device": "cuda"}, "no GPU that torch can use"), ({"torch": (99, 0)}, "needs torch 99.0")]
)
def test_an_unmet_requirement_is_reported_as_no_effect_with_the_reason(planted, seams, answering, parts, why):
    answering(torch.cuda, device_count=0)
    planted(demanding={"apply": lambda site: 1 / 0, **parts})
    running = AppliedPlan(torch, choices("demanding"), seams)
    running.begin()
    (outcome,) = running.outcomes
    assert outcome.status == "no effect"
    assert why in outcome.why


def test_outcomes_are_reported_once_training_is_under_way_and_recorded(planted, seams, tmp_path, capsys):
    planted(
        one={"apply": lambda site: site.applied("well")},
        other={"apply": lambda site: site.after(site.seams.stepping, lambda *_: site.refused("too big"))},
    )
    running = AppliedPlan(torch, choices("one", "other"), seams)
    running.folder, running.quiet = tmp_path, False
    running.begin()
    running.tell()
    assert capsys.readouterr().err == "", "a process that does not train says nothing"
    train(room.SETTLED - 1)
    assert capsys.readouterr().err == ""
    train(4)
    assert capsys.readouterr().err == "hotlap: applied: one (well)\nhotlap: refused: other (too big)\n"
    running.tell()
    assert capsys.readouterr().err == ""
    (record,) = tmp_path.glob("outcomes-*.json")
    assert [outcome["status"] for outcome in json.loads(record.read_text())["outcomes"]] == ["applied", "refused"]


def test_an_entry_withdrawn_later_is_reported_then(planted, seams, capsys):
    planted(one={"apply": lambda site: site.applied("well")})
    running = AppliedPlan(torch, choices("one"), seams)
    running.quiet = False
    running.begin()
    train(room.SETTLED)
    capsys.readouterr()
    running.sites[0].withdraw("it failed")
    assert capsys.readouterr().err == "hotlap: withdrawn: one (it failed)\n"


def test_other_ranks_and_quiet_runs_say_nothing(planted, seams, capsys, monkeypatch):
    planted(one={"apply": lambda site: site.applied("well")})
    monkeypatch.setenv("RANK", "1")
    running = AppliedPlan(torch, choices("one"), seams)
    running.quiet = False
    running.begin()
    train(room.SETTLED)
    assert capsys.readouterr().err == ""


def test_a_root_is_announced_between_two_steps_to_all_waiting_entries(planted, seams):
    roots = []
    planted(
        one={"apply": lambda site: site.when_root(roots.append)},
        other={"apply": lambda site: site.when_root(roots.append)},
    )
    AppliedPlan(torch, choices("one", "other"), seams).begin()
    train(4)
    assert [type(root) for root in roots] == [nn.Linear, nn.Linear]


def test_closing_the_seams_of_a_session_removes_the_entries(planted, tmp_path):
    """This happens in a forked child, because hotlap must not change a loader's worker."""
    planted(
        one={"apply": lambda site: site.replace(nn.Linear, "forward", lambda original, i, args, k: original(*args))}
    )
    before = dict(vars(nn.Linear))
    seams = Seams(torch, Guard(strict=True))
    room.start(torch, session(tmp_path, choices("one")), seams)
    assert vars(nn.Linear)["forward"] is not before["forward"]
    seams.close()
    assert dict(vars(nn.Linear)) == before


def session(folder, chosen, **more) -> Session:
    return Session(
        schema=1, folder=str(folder), agent="", steps=None, warmup=None, max_seconds=1e9, full=True, ceiling=False,
        trace=False, started=0.0, choices=tuple(chosen), **{"quiet": True, **more},
    )  # fmt: skip


def circumstances(**more) -> Circumstances:
    usual = {"command": ("python",), "source": "0", "torch": str(torch.__version__), "hardware": room.hardware(torch)}
    return Circumstances(**{**usual, **more})


def test_a_plan_proven_elsewhere_is_replaced_with_one_line_of_notice(planted, seams, tmp_path, capsys):
    applied = []
    planted(
        proven={"apply": lambda site: applied.append(site.name)},
        safe={"apply": lambda site: applied.append(site.name)},
    )
    elsewhere = circumstances(hardware="8 × Fast GPU")
    room.start(torch, session(tmp_path, choices("proven"), proven=elsewhere, otherwise=tuple(choices("safe"))), seams)
    assert applied == ["safe"]
    assert capsys.readouterr().err.count("\n") == 1


def test_differences_are_named():
    assert difference(circumstances(), torch) is None
    assert "torch 1.0, this is torch" in (difference(circumstances(torch="1.0"), torch) or "")
    assert "8 × Fast GPU, this is" in (difference(circumstances(hardware="8 × Fast GPU"), torch) or "")
    gpu = SimpleNamespace(device_count=lambda: 2, get_device_name=lambda: "Fast GPU")
    assert room.hardware(SimpleNamespace(cuda=gpu)) == "2 × Fast GPU"


@pytest.mark.parametrize("visible", [1, "GPU-5"])
def test_a_gpu_is_named_without_starting_cuda(visible, monkeypatch):
    def name(device):
        return {1: "Second GPU", "GPU-5": "Fifth GPU"}[device]

    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetName=name,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpu = SimpleNamespace(device_count=lambda: 1, _parse_visible_devices=lambda: [visible])
    assert room.hardware(SimpleNamespace(cuda=gpu)) == f"1 × {name(visible)}"


def test_outcomes_for_a_model_trained_later_are_reported_then(planted, seams, capsys):
    later = []
    planted(one={"apply": lambda site: (site.no_effect("not for this model"), later.append(site))})
    running = AppliedPlan(torch, choices("one"), seams)
    running.quiet = False
    running.begin()
    train(room.SETTLED)
    assert capsys.readouterr().err == "hotlap: no effect: one (not for this model)\n"
    later[0].applied("to the second")
    later[0].applied("to the third")
    assert capsys.readouterr().err == "hotlap: applied: one (to the second)\n"
    assert running.outcomes[0].why == "to the third"


def test_entries_that_need_a_gpu_share_one_line_without_one():
    def without_gpu(*names):
        return [Outcome(name=name, code="X", status="no effect", why=room.NO_GPU) for name in names]

    applied = Outcome(name="one", code="X", status="applied", why="w")
    expected = ["applied: one (w)", "no effect: 3 that need a GPU (no GPU that torch can use)"]
    assert lines([*without_gpu("a", "b", "c"), applied]) == expected
    assert lines(without_gpu("a")) == ["no effect: a (no GPU that torch can use)"]


def test_applied_entries_come_first():
    outcomes = [
        Outcome(name=status, code="X", status=status, why="w") for status in ("no effect", "refused", "applied")
    ]
    assert [line.split(":")[0] for line in lines(outcomes)] == ["applied", "refused", "no effect"]
    assert lines([]) == ["nothing to apply"]


def test_an_entry_that_changes_results_is_switched_off_for_good_and_reported(seams, capsys, monkeypatch, answering):
    answering(proof.Proof, difference="a weight differs by 0.1")
    started = []
    running = AppliedPlan(torch, choices("fused-optimizer"), seams, decides=True)
    running.quiet = False
    begin = running._begin
    monkeypatch.setattr(running, "_begin", lambda site: started.append(site.name) or begin(site))
    running.begin()
    deadline = time.monotonic() + 60
    while not running.deciding.doubted and time.monotonic() < deadline:
        train(20)
    train(200)
    running.tell()
    output = capsys.readouterr().err
    assert output.count("fused-optimizer is switched off for good: SGD: a weight differs by 0.1; earlier steps") == 1
    assert "some steps may have been wrong, as reported above; the program runs unchanged" in output
    assert "fused-optimizer" not in running.deciding.on
    assert started == ["fused-optimizer"]
