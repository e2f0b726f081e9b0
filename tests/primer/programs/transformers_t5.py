"""A transformers Seq2SeqTrainer on a tiny random T5: tied embeddings, -100 labels, label smoothing, Adafactor, recompute."""

import tempfile

import torch
from _digest import digest
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration, set_seed

set_seed(7)
torch.set_num_threads(1)
model = T5ForConditionalGeneration(
    T5Config(vocab_size=32, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=2, decoder_start_token_id=0)
)
data = []
for _ in range(48):
    ids = torch.randint(2, 30, (10,))
    labels = ids.flip(0).clone()
    labels[int(torch.randint(5, 10, ())) :] = -100
    shifted = model.prepare_decoder_input_ids_from_labels(labels[None])[0]  # what the library's collator adds
    data.append({"input_ids": ids, "labels": labels, "decoder_input_ids": shifted})
with tempfile.TemporaryDirectory() as folder:
    arguments = Seq2SeqTrainingArguments(
        output_dir=folder, num_train_epochs=2, per_device_train_batch_size=8, eval_strategy="epoch", save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True, optim="adafactor", label_smoothing_factor=0.1,
        gradient_checkpointing=True,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(model=model, args=arguments, train_dataset=data[:40], eval_dataset=data[40:])
    trainer.train()
print(trainer.state.global_step, digest(model))
