"""A transformers Trainer on a tiny randomly initialised GPT-2: two epochs, evaluation, gradient accumulation, warm-up."""

import tempfile

import torch
from _digest import digest
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(5)
torch.set_num_threads(1)
rows = torch.randint(0, 60, (96, 24))


class Rows(torch.utils.data.Dataset):
    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.data[i], "labels": self.data[i]}


model = GPT2LMHeadModel(GPT2Config(vocab_size=60, n_positions=32, n_embd=32, n_layer=2, n_head=2))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, num_train_epochs=2, per_device_train_batch_size=8, gradient_accumulation_steps=2,
        eval_strategy="epoch", save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, warmup_steps=2,
        learning_rate=1e-3, logging_steps=4,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows(rows[:80]), eval_dataset=Rows(rows[80:]))
    trainer.train()
print(trainer.state.global_step, digest(model))
