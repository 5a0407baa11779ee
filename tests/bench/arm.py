"""A scripted arm: prints what play.json beside the workloads tells it to and trains nothing."""

import json
import os
import signal
import sys
import time
from pathlib import Path

HIGHER_IS_BETTER = False

script = Path(sys.argv[0])
peer = script.stem.startswith("peer_")
root = script.parent if peer else script.parent.parent
arm = script.stem.removeprefix("peer_")
workload = sys.argv[1] if peer else script.parent.name
options = dict(zip(sys.argv[2 if peer else 1 :: 2], sys.argv[3 if peer else 2 :: 2], strict=True))
assert set(options) <= {"--size", "--seed", "--device", "--data", "--out", "--epochs"}, options
assert Path(options["--out"]).is_dir()
assert (Path(options["--data"]) / "numbers.txt").exists()

with (root / "calls.txt").open("a") as calls:
    calls.write(f"{workload} {arm} {options['--seed']} {os.getpid()} {options['--data']}\n")

part = {"samples": 1000, "metrics": [0.5, 0.2, 0.1], "seconds": 1.0, "target": 0.25}
part |= json.loads((root / "play.json").read_text()).get(f"{workload} {arm}", {})
metrics = part["metrics"][: int(options.get("--epochs", 99))]
print(f"train {part['samples']} samples  valid 100 samples", flush=True)
if peer:
    print("settings precision=32-true compile=no workers=0", flush=True)
for number, metric in enumerate(metrics, 1):
    while number == 2 and (root / f"hold-{workload}-{arm}-{options['--seed']}").exists():
        time.sleep(0.02)
    seconds = part["seconds"] * (5 if number == 1 else 1 + 0.01 * number + 0.01 * int(options["--seed"]))
    print(f"epoch {number}  loss 0.5  rmse {metric:.4f}  lr 0.1  seconds {seconds:.4f}", flush=True)
print(part.get("complaint", "a warning"), file=sys.stderr)
if "allocate" in part:
    block = bytearray(os.urandom(1024)) * (part["allocate"] * 1024)
    time.sleep(3.0)  # on a busy machine, seconds pass between two samples of the memory
if "sleep" in part:
    time.sleep(part["sleep"])
if "signal" in part:
    os.kill(os.getpid(), getattr(signal, part["signal"]))
if part.get("exit"):
    sys.exit(part["exit"])
verdict = "reached" if metrics[-1] <= part["target"] else "missed"
print(part.get("last", f"final rmse {metrics[-1]:.4f} target {part['target']:.4f} {verdict}"), flush=True)
