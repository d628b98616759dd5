"""A model that is not compiled yet, its optimizer and its data."""

import keras
import numpy

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
x, y = numpy.ones((64, 4), numpy.float32), numpy.ones((64, 1), numpy.float32)
