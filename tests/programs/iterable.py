import torch
from common import STEPS, Net, Points, say
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        points = Points()
        for index in range(STEPS * 4):
            yield {"inputs": points.inputs[index], "targets": points.targets[index]}


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for step, batch in enumerate(DataLoader(Stream(), batch_size=4), start=1):
    loss = torch.nn.functional.mse_loss(model(batch["inputs"]), batch["targets"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say(step, loss)
