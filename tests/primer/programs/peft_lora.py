"""peft LoRA on a tiny random GPT-2, trained by the transformers Trainer with gradient checkpointing off."""

import tempfile

import torch
from _digest import digest
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(5)
torch.set_num_threads(1)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 50, (64, 16))]
base = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2))
model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, task_type="CAUSAL_LM", fan_in_fan_out=True))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, max_steps=8, per_device_train_batch_size=8, save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True, learning_rate=1e-3,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=rows[:48], eval_dataset=rows[48:])
    trainer.train()
    trainer.evaluate()
merged = model.merge_and_unload()
print(trainer.state.global_step, digest(merged))
