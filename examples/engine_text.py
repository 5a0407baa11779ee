"""Text classified by a model of Hugging Face transformers, trained by hotlap.engine with a step of its own.

python examples/engine_text.py [--epochs N]
"""

import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification

from hotlap.engine import Recipe, Trainer

GOOD, BAD = "good great fine lovely happy".split(), "bad poor awful sad angry".split()
OTHERS = "the film was plot an actor and music in scene of this it very".split()
WORDS = ["[PAD]", *GOOD, *BAD, *OTHERS]
LENGTH = 12


def reviews(count, seed):
    """Return token numbers, masks and labels of short reviews, one word of which decides."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(len(GOOD) + len(BAD) + 1, len(WORDS), (count, LENGTH), generator=generator)
    labels = torch.randint(0, 2, (count,), generator=generator)
    lengths = torch.randint(4, LENGTH + 1, (count,), generator=generator)
    deciding = torch.randint(1, 1 + len(GOOD), (count,), generator=generator) + len(GOOD) * (1 - labels)
    tokens[torch.arange(count), torch.randint(0, 4, (count,), generator=generator)] = deciding
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    return tokens * mask, mask, labels


def loss_of(model, batch):
    tokens, mask, labels = batch
    return model(input_ids=tokens, attention_mask=mask, labels=labels).loss


def accuracy(model):
    tokens, mask, labels = reviews(256, seed=1)
    found = model(input_ids=tokens, attention_mask=mask).logits.argmax(1)
    return {"accuracy": (found == labels).float().mean()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    model = BertForSequenceClassification(config)
    trainer = Trainer(
        model,
        None,
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        Recipe(batch_size=32, clip=1.0, warmup=10, higher_is_better=True, patience=3),
        step=loss_of,
        evaluate=accuracy,
        device="cpu",
    )
    history = trainer.fit(reviews(1024, seed=0), epochs=options.epochs)
    print(f"accuracy {history.last.scores['accuracy']:.3f} after {len(history.epochs)} epochs")


if __name__ == "__main__":
    main()
