"""Counts the marks and operations that its own profiler shows, in this thread and in others."""

import threading

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
inputs, targets = torch.randn(64, 4), torch.randn(64, 1)
model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def step(some, others):
    with record_function("my step"):
        optimizer.zero_grad()
        loss = (model(some) - others).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def show(profiled):
    print(sorted((event.key, event.count) for event in profiled.key_averages()))


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


batches = schedule(wait=6, warmup=2, active=3, repeat=2)
with profile(activities=[ProfilerActivity.CPU], schedule=batches, on_trace_ready=show) as profiled:
    for _ in range(3):
        for some, others in DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True):
            print(step(some, others).hex())
            profiled.step()
whole = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
with profile(activities=[ProfilerActivity.CPU], experimental_config=whole) as profiled:
    thread = threading.Thread(target=step, args=(inputs, targets))
    thread.start()
    thread.join()
show(profiled)
with Counting() as counting:
    step(inputs, targets)
print(counting.names)
mark = record_function("open")
mark.__enter__()
with profile(activities=[ProfilerActivity.CPU]) as profiled:
    mark.__exit__(None, None, None)
    step(inputs, targets)
show(profiled)
