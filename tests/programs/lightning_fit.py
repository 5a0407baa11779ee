import warnings

warnings.simplefilter("ignore")
import lightning
import torch
from common import Net, Points, say
from torch.utils.data import DataLoader

lightning.seed_everything(0, verbose=False)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        say(self.global_step + 1, loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), DataLoader(Points(), batch_size=4))
print("fitted")
