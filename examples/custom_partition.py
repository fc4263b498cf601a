r"""A user-defined partition: devices differ in how much ink their digits have, not in which digits they hold.

    cfel run examples/tiny.toml --set data.partition=custom_partition:by_ink --set data.beta=0.5 \
        --set rounds.global=8

A partition is a function of the data set, the cluster of every device, the parameters of `[data]` and a
generator. It returns one array of training samples per device, by index. No sample may be on two devices, and
every device needs one; samples may be left out. The page docs/guides/data.md has the details.
"""

import numpy as np

from cfel.arrays import IntArray
from cfel.learning.data import DataSet
from cfel.learning.data.partition import DataParameters


def by_ink(
    data: DataSet, cluster: IntArray, parameters: DataParameters, draw: np.random.Generator
) -> list[IntArray]:
    """Gives light digits to the first devices and dark ones to the last; a large `beta` blurs the order."""
    ink = data.train_inputs.flatten(1).double().mean(1).numpy()
    blurred = ink + parameters.beta * ink.std() * draw.standard_normal(ink.size)
    return np.array_split(np.argsort(blurred), cluster.size)
