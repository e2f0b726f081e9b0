"""sentence-transformers: a tiny random BERT with mean pooling, pairs with in-batch negatives, then a cosine loss."""

import os
import random
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
from _digest import digest
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss
from sentence_transformers.models import Normalize, Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizer

random.seed(18)
numpy.random.seed(18)
torch.manual_seed(18)
torch.set_num_threads(1)
words = [f"w{i}" for i in range(40)]


def said() -> str:
    return " ".join(random.choices(words, k=random.randint(3, 8)))


with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/vocab.txt", "w") as file:
        file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    BertTokenizer(f"{folder}/vocab.txt").save_pretrained(f"{folder}/bert")
    config = BertConfig(
        vocab_size=45, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32,
    )  # fmt: skip
    BertModel(config).save_pretrained(f"{folder}/bert")
    transformer = Transformer(f"{folder}/bert", max_seq_length=16)
    model = SentenceTransformer(modules=[transformer, Pooling(16, "mean"), Normalize()], device="cpu")
    anchors = [said() for _ in range(48)]
    pairs = Dataset.from_dict({"anchor": anchors, "positive": [a + " " + said() for a in anchors]})
    scores = [random.random() for _ in anchors]
    scored = Dataset.from_dict({"sentence1": anchors, "sentence2": anchors[::-1], "score": scores})
    arguments = SentenceTransformerTrainingArguments(
        output_dir=f"{folder}/out",
        num_train_epochs=2,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        warmup_steps=2,
        eval_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset={"pairs": pairs, "scored": scored},
        eval_dataset={"pairs": pairs, "scored": scored},
        loss={"pairs": MultipleNegativesRankingLoss(model), "scored": CosineSimilarityLoss(model)},
        evaluator=EmbeddingSimilarityEvaluator(anchors[:8], anchors[8:16], scores[:8]),
    )
    trainer.train()
print(digest(model))
