"""A GAN whose two optimizers each step once per batch."""

import torch
from common import Points, say
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
judge = nn.BCEWithLogitsLoss()
for step, (real, _) in enumerate(DataLoader(Points(), batch_size=4, shuffle=True), start=1):
    with torch.no_grad():
        fake = generator(torch.randn(len(real), 4))
    ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
    critic_loss = judge(critic(real), ones) + judge(critic(fake), zeros)
    for_critic.zero_grad()
    critic_loss.backward()
    for_critic.step()
    generator_loss = judge(critic(generator(torch.randn(len(real), 4))), ones)
    for_generator.zero_grad()
    generator_loss.backward()
    for_generator.step()
    say(step, critic_loss.double() + generator_loss.double())
