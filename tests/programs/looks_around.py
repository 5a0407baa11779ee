"""Prints what a program can see of its own process while it trains; nothing of it may reveal hotlap."""

import gc
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path

started = []
STARTING = ("os.fork", "os.posix_spawn", "subprocess.Popen")
sys.addaudithook(lambda event, _: started.append(event) if event in STARTING else None)
os.register_at_fork(before=lambda: started.append("at fork"), after_in_parent=lambda: started.append("after fork"))

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)
log = logging.getLogger("program")
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(filename)s:%(lineno)d %(funcName)s %(message)s")


def shown(message, category, filename, lineno, file=None, line=None):
    print("warned", Path(filename).name, lineno, str(message).splitlines()[0])


warnings.showwarning = shown


def stack():
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in traceback.extract_stack()]


def blame(message, level=2):
    warnings.warn(message, stacklevel=level)
    log.info(message, stacklevel=level)


class Data(Dataset):
    fail = False

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == 5:
            blame("odd sample")
            blame("seen from afar", 6)
            print("loading", *stack(), sep="\n  ")
        if self.fail:
            try:
                {}["first"]
            except KeyError as error:
                raise ValueError("bad sample") from error
        return torch.full((3,), float(index)), torch.ones(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls == 3:
            blame("in forward")
            blame("around the call", 4)
            print("forward", *stack(), sep="\n  ")
            log.info("stack", stack_info=True)
        if self.calls == 9:
            raise ArithmeticError("no number")
        return self.layer(inputs)


class Twice(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(context, value):
        return value * 2

    @staticmethod
    def backward(context, gradient):
        Twice.calls += 1
        if Twice.calls == 4:
            raise LookupError("in backward")
        return gradient * 2


class Careful(torch.optim.SGD):
    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls == 6:
            raise OSError("in step")
        return super().step(closure)


data, model = Data(), Net()
optimizer = Careful(model.parameters(), lr=0.001)
optimizer.register_step_post_hook(lambda *_: print("stepped", stack()[-1]) if optimizer.calls == 2 else None)
loader = DataLoader(data, batch_size=2)


def train():
    for inputs, targets in loader:
        try:
            optimizer.zero_grad()
            loss = (Twice.apply(model(inputs)) - targets).square().mean()
            loss.backward()
            optimizer.step()
            print(float(loss).hex())
        except (ArithmeticError, LookupError, OSError):
            traceback.print_exc(file=sys.stdout)


def fails():
    try:
        train()
    except ValueError:
        log.exception("caught")
        try:
            next(iter(loader))
        except ValueError as error:
            print("again", *traceback.format_exception(error))


def in_thread(arguments):
    print("thread", arguments.exc_type, *traceback.format_tb(arguments.exc_traceback))


train()
train()
data.fail = True
fails()
threading.excepthook = in_thread
thread = threading.Thread(target=train)
thread.start()
thread.join()
try:
    torch.autograd.grad(torch.ones(2, requires_grad=True), torch.ones(2))
except RuntimeError:
    traceback.print_exc(file=sys.stdout)
try:
    DataLoader(data, batch_size=-1)
except ValueError as error:
    print(len(traceback.extract_tb(error.__traceback__)), error.__context__, error.__suppress_context__)
print("threads", [thread.name for thread in threading.enumerate()])
for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGALRM):
    print("handler", number, signal.getsignal(number))
print("collector", gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.garbage, gc.get_debug())
print("modules", sorted({"hotlap", "wrapt", "psutil", "rich", "click", "pynvml"} & sys.modules.keys()))
print("hooks", sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile(), sys.stdout is sys.__stdout__)
ours = [kind for _, _, kind, _, _ in warnings.filters if not kind.__module__.startswith("sympy")]  # Dynamo imports it
print("filters", len(ours), torch.is_warn_always_enabled())
print("processes", started)
