"""The callbacks, in real fits of Lightning and transformers on a few numbers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gradledger.core.errors import UsageError
from gradledger.integrations.lightning import Audit as LightningAudit
from gradledger.integrations.lightning import FaultsFound
from gradledger.integrations.transformers import Audit as TransformersAudit
from gradledger.watch import watch

warnings.filterwarnings("ignore", module="lightning|transformers")


class Module(lightning.LightningModule):
    """Manual optimization, with or without a clear."""

    def __init__(self, *, clear: bool, fails: bool = False) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(3, 1)
        self.clear, self.fails = clear, fails

    def training_step(self, batch: Any, number: int) -> None:
        optimizer = self.optimizers()
        if self.clear:
            optimizer.zero_grad()
        self.manual_backward(nn.functional.mse_loss(self.net(batch[0]), batch[1]))
        optimizer.step()
        if self.fails and number == 8:
            raise RuntimeError("in the fit")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), lr=0.01)


def fit(module: Module, audit: LightningAudit, folder: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(48, 3, generator=rng), torch.randn(48, 1, generator=rng))
    lightning.Trainer(
        max_epochs=1,
        callbacks=[audit],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        default_root_dir=folder,
    ).fit(module, DataLoader(data, batch_size=4))


def test_lightning_a_faulty_fit_is_told_and_may_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = LightningAudit()
    fit(Module(clear=False), audit, tmp_path)
    assert "GL-G01" in capsys.readouterr().err
    with pytest.raises(FaultsFound, match="GL-G01"):
        fit(Module(clear=False), LightningAudit(fail_on="error"), tmp_path)
    with watch() as after:
        pass
    assert after.findings == ()  # the watch of the fit is over


def test_lightning_a_correct_fit_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = LightningAudit(fail_on="warning")
    fit(Module(clear=True), audit, tmp_path)
    assert "GL-" not in capsys.readouterr().err
    assert audit.watch is not None
    ended = audit.watch.report().ended
    assert ended is not None
    assert ended.steps == 12


def test_lightning_an_exception_stays_what_is_raised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = LightningAudit(fail_on="error")
    with pytest.raises(RuntimeError, match="in the fit"):
        fit(Module(clear=False, fails=True), audit, tmp_path)
    assert "GL-G01" in capsys.readouterr().err
    fit(Module(clear=True), audit, tmp_path)


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((3,), index / 48), "labels": torch.full((1,), index / 24)}


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)
        self.head = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.head(self.net(x))
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


class NeverCleared(Regressor):
    """What the Trainer calls to clear does nothing."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        return


def trainer(model: nn.Module, audit: TransformersAudit, folder: Path) -> transformers.Trainer:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=12,
        per_device_train_batch_size=4,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[audit])


def test_transformers_a_faulty_training_is_told_and_may_raise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FaultsFound, match="GL-G01"):
        trainer(NeverCleared(), TransformersAudit(fail_on="error"), tmp_path).train()
    assert "GL-G01" in capsys.readouterr().err


def test_transformers_a_correct_training_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = TransformersAudit(fail_on="warning")
    trainer(Regressor(), audit, tmp_path).train()
    assert "GL-" not in capsys.readouterr().err
    assert audit.watch is not None
    ended = audit.watch.report().ended
    assert ended is not None
    assert ended.steps == 12


def test_a_severity_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="fail_on='errors'"):
        LightningAudit(fail_on="errors")  # type: ignore[arg-type]
