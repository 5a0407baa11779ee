"""A small transformer trained by the Hugging Face Trainer; needs pip install accelerate transformers.

Sentences are made up: in half of them some words are among the first eight of the vocabulary. Nothing is downloaded.

python examples/hf_trainer.py [--epochs N]
"""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

WORDS, LENGTH = 64, 16


class Sentences(Dataset):
    """Each sentence is made on request, from a seed of its own, so that it is the same every time."""

    def __init__(self, length, seed):
        self.length, self.seed = length, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 1_000_000 + index)
        words = torch.randint(8, WORDS, (LENGTH,), generator=generator)
        label = index % 2
        if label:
            words[torch.randint(0, LENGTH, (3,), generator=generator)] = index % 8
        return {"input_ids": words, "labels": torch.tensor(label)}


def accuracy(predicted):
    return {"val_acc": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=LENGTH,
        )
    )  # fmt: skip
    arguments = TrainingArguments(
        "trained", num_train_epochs=options.epochs, per_device_train_batch_size=32, learning_rate=2e-3,
        eval_strategy="epoch", logging_steps=20, seed=options.seed, report_to="none",
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, train_dataset=Sentences(6400, 1), eval_dataset=Sentences(640, 2), compute_metrics=accuracy
    )
    trainer.train()


if __name__ == "__main__":
    main()
