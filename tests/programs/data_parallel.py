"""For torchrun with gloo; rank 1 has extra work."""

import time

import torch
import torch.distributed as dist
from common import STEPS, Net, Points
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
points = Points(STEPS * 4 * 2)
loader = DataLoader(points, batch_size=4, sampler=DistributedSampler(points, shuffle=False))
losses = []
for inputs, targets in loader:
    if rank == 1:
        time.sleep(0.02)
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(memoryview(loss.detach().reshape(1).numpy())[0])
dist.destroy_process_group()
if rank == 0:
    for step, loss in enumerate(losses, start=1):
        print(f"step {step} loss {loss!r}")
