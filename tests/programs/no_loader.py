import torch
from common import STEPS, Net, Points, say

torch.manual_seed(0)
points, model = Points(), Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(1, STEPS + 1):
    rows = torch.randint(len(points), (6,))
    loss = torch.nn.functional.mse_loss(model(points.inputs[rows]), points.targets[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say(step, loss)
