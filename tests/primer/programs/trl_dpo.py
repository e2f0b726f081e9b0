"""trl DPOTrainer: a tiny random GPT-2, its frozen reference, pairs of answers, evaluation and checkpoints."""

import os
import random
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
from _digest import digest
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

random.seed(13)
numpy.random.seed(13)
torch.manual_seed(13)
torch.set_num_threads(1)
words = [f"w{i}" for i in range(30)]
inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", *words])}, unk_token="<unk>"))
inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
config = GPT2Config(
    vocab_size=33, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1, pad_token_id=0
)


def said(count: int) -> str:
    return " ".join(random.choices(words, k=count))


rows = [{"prompt": said(4), "chosen": " " + said(5), "rejected": " " + said(3)} for _ in range(40)]
with tempfile.TemporaryDirectory() as folder:
    trainer = DPOTrainer(
        model=GPT2LMHeadModel(config),
        ref_model=GPT2LMHeadModel(config),
        args=DPOConfig(
            output_dir=folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            num_train_epochs=2,
            learning_rate=1e-3,
            beta=0.2,
            eval_strategy="epoch",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows[:32]),
        eval_dataset=Dataset.from_list(rows[32:]),
        processing_class=tokenizer,
    )
    trainer.train()
print(digest(trainer.model))
