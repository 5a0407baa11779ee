"""Ranks that train together switch at the same step, and an entry that one of them refuses is on in none."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from harness import warmed_torchrun

from hotlap.control.ranks import JOINING, Order, SeveralRanks
from tests.control.test_decider import STEP, Loaded, Played

NAMES = ("one", "two")
TRAIN = """
import hashlib, sys, torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
device = sys.argv[1]
layers = [nn.Linear(8, 8) for _ in range(60)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(dist.get_rank())
for step in range(300):
    loss = (model(torch.randn(4, 8).to(device)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        found = [None, None]
        weights = b"".join(one.detach().cpu().numpy().tobytes() for one in model.parameters())
        dist.all_gather_object(found, hashlib.sha256(weights).hexdigest())
        if dist.get_rank() == 0:
            print(step, len(set(found)))
dist.destroy_process_group()
"""


def halved_by_two(arm: frozenset[str]) -> float:
    return STEP / 2 if "two" in arm else STEP


def trained(
    folder: Path, rank: int, world: int, refused: tuple[str, ...] = (), loading: Loaded | None = None
) -> Played:
    ranks = partial(SeveralRanks, folder, list(NAMES), rank, world)
    return Played(halved_by_two, NAMES, refused=refused, loading=loading, ranks=ranks)


def steps_of(ranks: list[Played], steps: int) -> list[list[frozenset[str]]]:
    """Returns what is on in each rank, step by step."""
    found = []
    for _ in range(steps):
        for rank in ranks:
            rank.step()
        found.append([rank.arms.now for rank in ranks])
    return found


@pytest.mark.parametrize("first", [0, 1])
def test_all_ranks_switch_at_the_same_step(tmp_path: Path, first: int) -> None:
    ranks = [trained(tmp_path, rank, 2) for rank in range(2)]
    found = steps_of(ranks if first == 0 else ranks[::-1], 800)
    assert all(len(set(step)) == 1 for step in found)
    assert ranks[0].on == {"two"}
    assert len({frozenset(step) for step in found}) > 1
    assert ranks[0].lines == ["decided"]
    assert ranks[1].lines == [], "one of them speaks"
    assert not ranks[0].listening or ranks[1].listening


def test_an_entry_refused_by_one_of_three_ranks_is_on_in_none(tmp_path: Path) -> None:
    ranks = [trained(tmp_path, rank, 3, refused=("two",) if rank == 2 else ()) for rank in range(3)]
    steps_of(ranks, 800)
    assert [rank.arms.now for rank in ranks] == [frozenset()] * 3


def test_all_ranks_make_batches_the_same_way(tmp_path: Path) -> None:
    ranks = [trained(tmp_path, rank, 2, loading=Loaded(lambda: STEP)) for rank in range(2)]
    waits = []
    for _ in range(400):
        for rank in ranks:
            rank.step()
        waits.append([rank.deciding.orders.waits for rank in ranks])
    assert all(len(set(step)) == 1 for step in waits)
    assert [False, False] in waits
    assert all(rank.loading.is_off for rank in ranks), "batches took longer so"


def test_ranks_may_be_some_steps_apart(tmp_path: Path) -> None:
    """On GPUs one host may be ahead of another: ranks switch at the same step, not at the same time."""
    ranks = [trained(tmp_path, rank, 2) for rank in range(2)]
    steps_of(ranks, 8)
    ranks[1].train(5)
    on = steps_of(ranks, 1500)
    assert ranks[0].on == {"two"}
    assert [step[0] for step in on[5:]] == [step[1] for step in on[:-5]]


def test_a_rank_informed_too_late_ends_it_for_all(tmp_path: Path) -> None:
    ranks = [trained(tmp_path, rank, 2) for rank in range(2)]
    steps_of(ranks, 60)
    assert not ranks[0].lines
    decides = ranks[0].deciding.orders.ranks
    assert isinstance(decides, SeveralRanks)
    assert decides._board is not None
    decides._number += 1
    decides._board.write_order(Order(number=decides._number, at=1))
    steps_of(ranks, 100)
    assert ranks[0].lines == ["failed: the ranks are out of step with each other"]
    assert [rank.arms.now for rank in ranks] == [frozenset()] * 2


def test_an_error_in_one_rank_ends_it_for_all(tmp_path: Path) -> None:
    ranks = [trained(tmp_path, rank, 2) for rank in range(2)]
    steps_of(ranks, 600)
    assert ranks[1].arms.now == {"two"}
    ranks[0].deciding.findings.after = None
    ranks[0].deciding.orders.report_failure()
    steps_of(ranks[1:], 4)
    assert ranks[1].arms.now == frozenset()


def test_does_not_wait_for_a_rank_on_another_machine(tmp_path: Path) -> None:
    ranks = [trained(tmp_path / "here", 0, 2), trained(tmp_path / "there", 1, 2)]
    (tmp_path / "here").mkdir()
    steps_of(ranks, JOINING)
    assert not any(rank.deciding.orders.ranks.together for rank in ranks)
    steps_of(ranks, 600)
    assert [rank.on for rank in ranks] == [{"two"}] * 2, "each decides by itself, about what is exact"


def test_weights_of_all_ranks_stay_identical(tmp_path: Path) -> None:
    check_ranks(warmed_torchrun(), "cpu", tmp_path)


def check_ranks(torchrun: list[str], device: str, folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(TRAIN)
    hotlap = [
        sys.executable,
        "-m",
        "hotlap",
        "run",
        "--verbose",
        "--risk",
        "rounding",
        "--run-dir",
        str(folder / "kept"),
    ]
    command = [*hotlap, *torchrun, str(script), device]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"{step} 1" for step in range(49, 300, 50)]
    messages = [line for line in ran.stderr.splitlines() if line.startswith("hotlap: ")]
    assert [line for line in messages if line.startswith("hotlap: applied: fused-optimizer")], messages
    assert len(messages) == len(set(messages)), "by one of them"
