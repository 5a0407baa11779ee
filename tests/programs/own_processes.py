"""Prepares its data in a pool, loads with workers, and trains in a child process."""

import multiprocessing
import sys

import torch
from common import Net, Points, say
from torch.utils.data import DataLoader

METHODS_OF_TENSOR = tuple(vars(torch.Tensor))


class Checked(Points):
    """A dataset that fails in a worker that hotlap has instrumented."""

    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None:
            assert "hotlap.observe.agent" not in sys.modules or not hasattr(torch.Tensor.item, "__wrapped__")
            assert not hasattr(torch.utils.data.DataLoader.__iter__, "__wrapped__"), "a loader worker is instrumented"
        return super().__getitem__(index)


def double(number):
    return 2 * number


def train(start_method):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = DataLoader(Checked(), batch_size=4, num_workers=1, multiprocessing_context=start_method)
    for step, (inputs, targets) in enumerate(loader, start=1):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)


if __name__ == "__main__":
    start_method = sys.argv[1]
    context = multiprocessing.get_context(start_method)
    with context.Pool(1) as pool:
        print(pool.map(double, [1, 2, 3]))
    process = context.Process(target=train, args=(start_method,))
    process.start()
    process.join()
    sys.exit(process.exitcode)
