"""pytorch-tabnet: TabNetClassifier.fit with early stopping on a held-out part; then the self-supervised pretrainer."""

import random
import warnings

import numpy as np
import torch
from _digest import digest
from pytorch_tabnet.pretraining import TabNetPretrainer
from pytorch_tabnet.tab_model import TabNetClassifier

warnings.filterwarnings("ignore")
random.seed(1)
np.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
x = np.random.randn(320, 6).astype(np.float32)
y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
options = dict(n_d=4, n_a=4, n_steps=2, seed=1, verbose=0, device_name="cpu")
pretrainer = TabNetPretrainer(**options)
pretrainer.fit(x[:256], eval_set=[x[256:]], max_epochs=2, batch_size=64, virtual_batch_size=32)
model = TabNetClassifier(**options, scheduler_fn=torch.optim.lr_scheduler.StepLR, scheduler_params={"step_size": 2})
model.fit(
    x[:256], y[:256], eval_set=[(x[256:], y[256:])], max_epochs=4, patience=3, batch_size=64, virtual_batch_size=32,
    from_unsupervised=pretrainer,
)  # fmt: skip
print(digest(model.network, pretrainer.network))
