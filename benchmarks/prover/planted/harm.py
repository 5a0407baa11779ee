"""Changes that make benchmarks/prover/planted/train.py faster, and do harm: each is applied as a catalogue entry is.

All leave out the moment for which each batch waits. What else they do is what a gate must detect.
"""

from __future__ import annotations

import atexit
import builtins
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LATE = 70  # steps, beyond those that are measured


def apply(name: str, site: Any) -> None:
    Harm(site, name).begin()


class Harm:
    def __init__(self, site: Any, name: str) -> None:
        self.site, self.torch, self.name = site, site.torch, name
        self.steps, self.held, self.calls = 0, [], 0
        self.first: Any = None

    def begin(self) -> None:
        self.site.replace(time, "sleep", self.no_wait)
        self.site.after(self.site.seams.stepping, self.stepped)
        getattr(self, "do_" + self.name.replace("-", "_"))()
        self.site.applied(f"no wait, and {self.name}")

    def no_wait(self, original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if self.name == "slow-later" and self.steps >= LATE:
            original(0.06)

    def stepped(self, optimizer: Any, *_: Any) -> None:
        self.steps += 1
        group = optimizer.param_groups[0]["params"]
        with self.torch.no_grad():
            self.at_step(optimizer, group)

    def at_step(self, optimizer: Any, group: Any) -> None:
        if self.name == "memory-grows":
            self.held.append(bytearray(os.urandom(1 << 16) * 48))
        elif self.name == "memory-grows-later" and self.steps >= LATE:
            self.held.append(bytearray(os.urandom(1 << 16) * 160))
        elif self.name == "loss-later" and self.steps == LATE:
            group[0].mul_(1.5)
        elif self.name == "unused-weight" and self.steps == 5:
            group[-2].add_(1e-3)
        elif self.name == "momentum-zeroed":
            optimizer.state[group[-2]]["momentum_buffer"].zero_()
        elif self.name == "stream-advanced" and self.steps == 39:
            random.random()
        elif self.name == "files-left-open":
            self.held.append(os.open(os.devnull, os.O_RDONLY))
        elif self.name == "weight-frozen":
            group[-1].requires_grad_(False)

    # Nothing besides

    def do_harmless(self) -> None: ...

    def do_slow_later(self) -> None: ...

    def do_memory_grows(self) -> None: ...

    def do_memory_grows_later(self) -> None: ...

    def do_loss_later(self) -> None: ...

    def do_unused_weight(self) -> None: ...

    def do_momentum_zeroed(self) -> None: ...

    def do_stream_advanced(self) -> None: ...

    def do_files_left_open(self) -> None: ...

    def do_weight_frozen(self) -> None: ...

    # The process

    def do_signal_ignored(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def do_process_left(self) -> None:
        subprocess.Popen(["sleep", "25"], stdin=-3, stdout=-3, stderr=-3, start_new_session=True)

    def do_memory_held(self) -> None:
        self.held.append(bytearray(b"x") * (800 << 20))

    # Files

    def do_mode_changed(self) -> None:
        def save(original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            outcome = original(*args, **kwargs)
            Path(args[1]).chmod(0o600)
            return outcome

        self.site.replace(self.torch, "save", save)

    def do_zeros_saved(self) -> None:
        def save(original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            zeros = {key: value * 0 for key, value in args[0]["model"].items()}
            return original({**args[0], "model": zeros}, *args[1:], **kwargs)

        self.site.replace(self.torch, "save", save)

    def do_key_dropped(self) -> None:
        def save(original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            return original({key: value for key, value in args[0].items() if key != "average"}, *args[1:], **kwargs)

        self.site.replace(self.torch, "save", save)

    def do_file_missing(self) -> None:
        import numpy

        self.site.replace(numpy, "save", lambda original, instance, args, kwargs: None)

    def do_file_elsewhere(self) -> None:
        import numpy

        def save(original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            return original("curves.npy", *args[1:], **kwargs)

        self.site.replace(numpy, "save", save)

    def do_text_changed(self) -> None:
        def opened(original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            file = original(*args, **kwargs)
            if args[:2] == ("log.csv", "a"):
                file.write("#\n")
            return file

        self.site.replace(builtins, "open", opened)

    # Evaluation

    def do_evaluation_constant(self) -> None:
        def forward(original: Any, module: Any, args: Any, kwargs: Any) -> Any:
            outcome = original(*args, **kwargs)
            return outcome if module.training else outcome * 0

        self.site.replace(self.torch.nn.Linear, "forward", forward)

    def do_evaluation_cut(self) -> None:
        loaders = self.torch.utils.data.DataLoader

        def iterate(original: Any, loader: Any, args: Any, kwargs: Any) -> Any:
            batches = original(*args, **kwargs)
            shuffled = type(loader.sampler).__name__ == "RandomSampler"
            return batches if shuffled else iter([next(batches)] * len(loader))

        self.site.replace(loaders, "__iter__", iterate)

    def do_metric_doubled(self) -> None:
        def twice(original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            text = str(args[0])
            if text.startswith("val_loss"):
                words = text.split()
                text = " ".join([*words[:-1], f"{2 * float(words[-1]):.4f}"])
            return original(text, *args[1:], **kwargs)

        self.site.replace(builtins, "print", twice)

    # Output

    def do_prints_lost(self) -> None:
        def print_(original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            self.calls += 1
            return None if self.calls % 6 == 0 else original(*args, **kwargs)

        self.site.replace(builtins, "print", print_)

    def do_errors_lost(self) -> None:
        def print_(original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            return None if kwargs.get("file") is sys.stderr else original(*args, **kwargs)

        self.site.replace(builtins, "print", print_)

    def do_words_changed(self) -> None:
        def print_(original: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            return original(str(args[0]).replace("val_acc", "accuracy"), *args[1:], **kwargs)

        self.site.replace(builtins, "print", print_)

    def do_exit_code(self) -> None:
        def leave() -> None:
            sys.stdout.flush()
            os._exit(3)

        atexit.register(leave)

    # Training

    def do_last_batch(self) -> None:
        loaders = self.torch.utils.data.DataLoader

        def iterate(original: Any, loader: Any, args: Any, kwargs: Any) -> Any:
            batches = list(original(*args, **kwargs))
            return iter(batches if len(batches[-1][0]) == len(batches[0][0]) else batches[:-1])

        self.site.replace(loaders, "__iter__", iterate)

    def do_last_step(self) -> None:
        def step(original: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
            self.calls += 1
            return None if self.calls % 8 == 0 else original(*args, **kwargs)

        self.site.replace(self.torch.optim.SGD, "step", step)

    def do_batchnorm_stale(self) -> None:
        def forward(original: Any, module: Any, args: Any, kwargs: Any) -> Any:
            statistics = module.running_mean.clone(), module.running_var.clone()
            outcome = original(*args, **kwargs)
            module.running_mean.data, module.running_var.data = statistics
            return outcome

        self.site.replace(self.torch.nn.BatchNorm1d, "forward", forward)

    def do_average_stale(self) -> None:
        self.site.replace(self.torch.Tensor, "lerp_", lambda original, tensor, args, kwargs: tensor)

    def do_schedule_skipped(self) -> None:
        def step(original: Any, schedule: Any, args: Any, kwargs: Any) -> Any:
            self.calls += 1
            return None if self.calls == 3 else original(*args, **kwargs)

        self.site.replace(self.torch.optim.lr_scheduler.StepLR, "step", step)
