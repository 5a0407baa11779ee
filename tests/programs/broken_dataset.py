import torch
from torch.utils.data import DataLoader


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise ValueError("bad sample")


for batch in DataLoader(Broken()):
    pass
