import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from common import STEPS, say
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Sentences(Dataset):
    def __len__(self):
        return STEPS * 4

    def __getitem__(self, index):
        tokens = torch.arange(8) * (index + 1) % 50
        return {"input_ids": tokens, "attention_mask": torch.ones(8, dtype=torch.long), "labels": index % 2}


class Speaking(Trainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        say(self.state.global_step + 1, loss[0] if isinstance(loss, tuple) else loss)
        return loss


set_seed(0)
config = BertConfig(
    vocab_size=64,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        num_train_epochs=1,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Speaking(model=BertForSequenceClassification(config), args=arguments, train_dataset=Sentences())
    trainer.remove_callback(PrinterCallback)  # it prints times, which differ from run to run
    trainer.train()
print("trained")
