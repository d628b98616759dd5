"""A net."""

from mxnet import gluon

net = gluon.nn.Dense(1, in_units=4)
net.initialize()
