"""MONAI: a residual UNet with Dice loss on tiny volumes, supervised engines with validation and sliding windows."""

import numpy
import torch
from _digest import digest
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import LrScheduleHandler, MeanDice, StatsHandler, ValidationHandler, from_engine
from monai.inferers import SimpleInferer, SlidingWindowInferer
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import AsDiscreted, Compose, RandFlipd, RandGaussianNoised, ScaleIntensityd
from monai.utils import set_determinism

set_determinism(11)
torch.set_num_threads(1)
field = numpy.random.randn(12, 1, 16, 16, 16).astype("float32")
label = (field.cumsum(-1) > 0).astype("float32")
volumes = [{"image": torch.from_numpy(a), "label": torch.from_numpy(b)} for a, b in zip(field, label, strict=True)]
change = Compose(
    [
        ScaleIntensityd("image"),
        RandFlipd(["image", "label"], prob=0.5, spatial_axis=0),
        RandGaussianNoised("image", prob=0.3),
    ]
)
training = DataLoader(Dataset(volumes[:8], change), batch_size=2, shuffle=True)
validation = DataLoader(Dataset(volumes[8:], ScaleIntensityd("image")), batch_size=1)
net = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,), num_res_units=1, norm="batch")
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
after = Compose([AsDiscreted("pred", argmax=True, to_onehot=2), AsDiscreted("label", to_onehot=2)])
evaluator = SupervisedEvaluator(
    device=torch.device("cpu"),
    val_data_loader=validation,
    network=net,
    inferer=SlidingWindowInferer(roi_size=(16, 16, 8), sw_batch_size=2, overlap=0.25),
    postprocessing=after,
    key_val_metric={"dice": MeanDice(include_background=False, output_transform=from_engine(["pred", "label"]))},
)
trainer = SupervisedTrainer(
    device=torch.device("cpu"),
    max_epochs=3,
    train_data_loader=training,
    network=net,
    optimizer=optimizer,
    loss_function=DiceCELoss(to_onehot_y=True, softmax=True),
    inferer=SimpleInferer(),
    train_handlers=[
        LrScheduleHandler(torch.optim.lr_scheduler.StepLR(optimizer, 2), print_lr=False),
        ValidationHandler(1, evaluator),
        StatsHandler(tag_name="loss", output_transform=from_engine(["loss"], first=True)),
    ],
)
trainer.run()
print(f"{evaluator.state.metrics['dice']:.5f}", digest(net))
