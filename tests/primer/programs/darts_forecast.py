"""darts: N-BEATS with validation and early stopping, then a TCN with quantiles, fitted and asked for a forecast."""

import random

import numpy
import pandas
import torch
from _digest import digest
from darts import TimeSeries
from darts.dataprocessing.transformers import Scaler
from darts.models import NBEATSModel, TCNModel
from darts.utils.likelihood_models import QuantileRegression
from lightning.pytorch.callbacks import EarlyStopping

random.seed(20)
numpy.random.seed(20)
torch.manual_seed(20)
torch.set_num_threads(1)
days = pandas.date_range("2020-01-01", periods=160, freq="D")
values = numpy.sin(numpy.arange(160) / 5) + 0.1 * numpy.random.randn(160)
series = Scaler().fit_transform(TimeSeries.from_times_and_values(days, values.astype("float32")))
training, validation = series[:120], series[120:]
quiet = dict(accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, logger=False)
common = dict(input_chunk_length=16, output_chunk_length=4, batch_size=16, n_epochs=3, random_state=1)
beats = NBEATSModel(
    num_stacks=2, num_blocks=1, num_layers=2, layer_widths=16, **common,
    pl_trainer_kwargs=quiet | dict(callbacks=[EarlyStopping("val_loss", patience=2)], gradient_clip_val=1.0),
)  # fmt: skip
beats.fit(training, val_series=validation)
beats.predict(6)
tcn = TCNModel(
    num_filters=4, kernel_size=3, dropout=0.1, likelihood=QuantileRegression([0.1, 0.5, 0.9]), **common,
    lr_scheduler_cls=torch.optim.lr_scheduler.ExponentialLR, lr_scheduler_kwargs=dict(gamma=0.9), pl_trainer_kwargs=quiet,
)  # fmt: skip
tcn.fit(training)
tcn.predict(4, num_samples=5)
print(digest(beats.model, tcn.model))
