"""A transformers Trainer on a tiny random BERT classifier: padded batches, frozen embeddings, save and resume."""

import tempfile
from pathlib import Path

import torch
from _digest import digest
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(6)
torch.set_num_threads(1)


def rows(count: int) -> list[dict[str, object]]:
    made = []
    for _ in range(count):
        length = int(torch.randint(4, 13, ()))
        ids = torch.zeros(12, dtype=torch.long)
        ids[:length] = torch.randint(1, 40, (length,))
        made.append({"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": int(ids[0] % 2)})
    return made


def model() -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    made = BertForSequenceClassification(config)
    made.bert.embeddings.requires_grad_(False)
    return made


train, held_out = rows(40), rows(8)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, num_train_epochs=2, per_device_train_batch_size=8, eval_strategy="epoch", save_strategy="epoch",
        report_to=[], disable_tqdm=True, use_cpu=True, learning_rate=1e-3, load_best_model_at_end=True,
    )  # fmt: skip
    trainer = Trainer(model=model(), args=arguments, train_dataset=train, eval_dataset=held_out)
    trainer.train()
    arguments.num_train_epochs = 3
    again = Trainer(model=model(), args=arguments, train_dataset=train, eval_dataset=held_out)
    again.train(resume_from_checkpoint=str(sorted(Path(folder).glob("checkpoint-*"))[-1]))
print(again.state.global_step, digest(trainer.model, again.model))
