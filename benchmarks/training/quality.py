"""Does every arm reach its target with every seed?

`python benchmarks/training/quality.py --arms naive,engine --out FILE`

The runs of `hotlap bench`, several at a time: what a model learns does not depend on what runs beside it, its speed
does. So the file is one of `hotlap bench`, in which speeds mean nothing. Each run is kept the moment it ends; none
starts after --minutes. The data of each workload is made while others train.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock

from hotlap.bench import data, process, record, session, workloads
from hotlap.bench.order import Key
from hotlap.bench.record import Bench
from hotlap.bench.summary import summarize
from hotlap.errors import INTERRUPTED, HotlapError


class Kept:
    """The bench so far, in its file."""

    def __init__(self, bench: Bench, out: Path, total: int) -> None:
        self.bench, self.out, self.total = bench, out, total
        self._lock = Lock()

    def add(self, run: record.Run) -> None:
        run = replace(run, peak_device_mb=None)  # of all that run at that time
        with self._lock:
            runs = (*self.bench.runs, run)
            self.bench = replace(self.bench, runs=runs, summary=summarize(self.bench.choice, self.bench.tasks, runs))
            record.save(self.bench, self.out)
            last = run.lines[-1].text if run.lines else ""
            what = " ".join((*run.key[:2], f"seed {run.seed}:", run.ended, run.why or last))
            print(f"{len(runs)}/{self.total} {what}, {run.seconds:.0f} s", flush=True)


def order(choice: record.Choice, first_seed: int) -> list[Key]:
    """Order runs arm by arm, so that what is left undone when time is up is of the arms named last."""
    seeds = range(first_seed, choice.seeds)
    return [(name, arm, seed) for arm in choice.arms for seed in seeds for name in choice.workloads]


class Ended(Exception):
    """Training has ended; nothing more is started."""


def perform(options: argparse.Namespace) -> Bench:
    prepared = session.prepare(asked_of(options))
    choice, begin = prepared.bench.choice, time.monotonic()
    keys = order(choice, options.first_seed)
    results = Kept(replace(prepared.bench, command=command_line(choice, options)), prepared.out, len(keys))
    arm = process.Arm(place=prepared.place, size=choice.size, device=choice.device, epochs=None, max_seconds=None)
    ended = Event()

    def go_on(*_: object) -> None:
        """Called now and then during a run, which is killed if this raises."""
        if ended.is_set():
            raise Ended

    with ThreadPoolExecutor(len(choice.workloads)) as makers, ThreadPoolExecutor(options.at_once) as pool:
        made: dict[str, Future[Path]] = {
            name: makers.submit(data.make, prepared.place, name, choice.size, go_on) for name in choice.workloads
        }

        def train(key: Key) -> None:
            folder = made[key[0]].result()
            if not ended.is_set() and time.monotonic() - begin < 60 * options.minutes:
                results.add(process.run(arm, key, folder, go_on))

        try:
            for done in as_completed([pool.submit(train, key) for key in keys]):
                done.result()
        except BaseException:  # else all that is left would be trained before the failure is reported
            ended.set()
            raise
    return results.bench


def command_line(choice: record.Choice, options: argparse.Namespace) -> str:
    """Return the command that measures the same."""
    script = "python benchmarks/training/quality.py"
    words = [script, *choice.workloads, "--arms", ",".join(choice.arms), "--size", choice.size]
    words += ["--seeds", str(choice.seeds), "--first-seed", str(options.first_seed), "--at-once", str(options.at_once)]
    return " ".join([*words, "--device", choice.device])


def asked_of(options: argparse.Namespace) -> session.BenchRequest:
    return session.BenchRequest(
        workloads=tuple(options.workloads) or None,
        arms=tuple(options.arms.split(",")),
        size=options.size,
        device=options.device,
        seeds=options.seeds,
        epochs=None,
        out=options.out,
        resume=False,
        max_minutes=None,
    )


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="all when none is named")
    parser.add_argument("--arms", default=",".join(workloads.ARMS), help="the most important first")
    parser.add_argument("--size", choices=session.SIZES, default=session.SIZE)
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to this less one")
    parser.add_argument("--first-seed", type=int, default=0, help="where the ones before are known")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--at-once", type=int, default=4, help="runs beside each other")
    parser.add_argument("--minutes", type=float, default=60.0, help="no run starts later")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    if not 0 <= options.first_seed < options.seeds or options.at_once < 1:
        parser.error("--first-seed must be at least 0 and below --seeds, and --at-once at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    try:
        bench = perform(read_options(arguments))
    except HotlapError as error:
        print(f"quality: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("quality: interrupted; finished runs are saved", file=sys.stderr)
        return INTERRUPTED
    for row in bench.summary:
        found = ", ".join(f"{quality:.4f}" for quality in row.qualities)
        print(f"{row.workload:14} {row.arm:10} {row.metric} {found}: {row.reached} of {row.runs} reached {row.target}")
    return 0 if all(row.reached == row.runs for row in bench.summary) else 1


if __name__ == "__main__":
    sys.exit(main())
