"""Keras 3 on torch: compile and fit with validation, callbacks and dropout, then the functional API with two heads."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy
import torch
from _digest import digest

keras.utils.set_random_seed(8)
torch.set_num_threads(1)
x = numpy.random.randn(240, 8).astype("float32")
y = (x[:, 0] > 0).astype("int64") + (x[:, 1] > 0).astype("int64")
model = keras.Sequential(
    [
        keras.Input((8,)),
        keras.layers.Dense(24),
        keras.layers.BatchNormalization(),
        keras.layers.Activation("relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(1e-2, clipnorm=1.0), "sparse_categorical_crossentropy", metrics=["accuracy"])
callbacks = [
    keras.callbacks.ReduceLROnPlateau(patience=1),
    keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
]
model.fit(x, y, batch_size=24, epochs=4, validation_split=0.2, callbacks=callbacks, verbose=0)
told = model.evaluate(x, y, verbose=0)

inputs = keras.Input((8,))
trunk = keras.layers.Dense(16, activation="gelu", kernel_regularizer=keras.regularizers.L2(1e-3))(inputs)
label = keras.layers.Dense(3, name="label")(trunk)
value = keras.layers.Dense(1, name="value")(trunk)
both = keras.Model(inputs, {"label": label, "value": value})
both.compile(
    keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.05, 20), momentum=0.9, use_ema=True),
    {"label": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "value": "mse"},
    loss_weights={"label": 1.0, "value": 0.5},
)
both.fit(x, {"label": y, "value": x[:, 2:3]}, batch_size=32, epochs=3, verbose=0)
print(f"{told[0]:.5f}", digest(model, both))
