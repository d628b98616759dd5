"""What a rank of network_rank.py or sending_less_rank.py does by PCCL: it connects, and sums arrays in place."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from typing import Any

BUILT = """PCCL is measured where the variable PCCL_FOLDER names a folder with its Python package, with its library
(libpccl.so) in that, and with cffi. To make one, run `PCCL_BUILD_CUDA_SUPPORT=OFF pip install --target FOLDER
python/framework/` in a checkout of https://github.com/PrimeIntellect-ai/pccl with its submodules; its flags of cmake
are -DCMAKE_BUILD_TYPE=Release -DPCCL_BUILD_CUDA_SUPPORT=OFF -DPCCL_BUILD_STATIC_LIB=OFF."""
FOLDER = os.environ.get("PCCL_FOLDER", "")
PORT = 29520
CONNECT_ATTEMPTS = 60  # one a second
PART_BYTES = 4 << 20  # Smaller ones are slower: the ranks vote on each, before and after it.


def pccl_allreduce(
    rank: int, size: int, root: str, key_file: str = "", *, quantised: bool = False,  # noqa: ARG001
) -> Callable[[Any], None]:  # fmt: skip
    """In-place sum by PCCL, of float32 as it is or by uint8: PCCL_AT_ONCE parts at once, over as many connections."""
    # It comes last, so that only what is nowhere else is taken from there.
    sys.path.append(FOLDER)
    import numpy as np
    import pccl

    at_once = int(os.environ.get("PCCL_AT_ONCE", "4"))
    if rank == 0:
        master = pccl.MasterNode(f"0.0.0.0:{PORT}")
        master.run()
        atexit.register(master.interrupt)  # Python waits for its end, which only this brings.
    communicator = pccl.Communicator(f"{root}:{PORT}", p2p_connection_pool_size=at_once)
    communicator.connect(CONNECT_ATTEMPTS)
    # The ring's order is left as it is: all hosts are equally far from each other.
    deadline = time.monotonic() + CONNECT_ATTEMPTS
    while (come := communicator.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE)) < size:
        if time.monotonic() > deadline:
            raise SystemExit(f"pccl: {come} of {size} ranks have come in {CONNECT_ATTEMPTS} s")
        if communicator.are_peers_pending():
            communicator.update_topology()
        time.sleep(0.1)
    operand = pccl.ReduceOperandDescriptor(pccl.DataType.FLOAT, pccl.DistributionHint.NORMAL)
    sent = pccl.QuantizationOptions(pccl.DataType.FLOAT, pccl.QuantizationAlgorithm.NONE)
    if quantised:
        sent = pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm.ZERO_POINT_SCALE)

    def described(part: Any, tag: int) -> Any:
        reduced = pccl.ReduceDescriptor(part.size, pccl.ReduceOp.SUM, tag, operand, sent)
        return pccl.ReduceOpDescriptor.from_numpy(part, part, reduced)

    def allreduce(array: Any) -> None:
        parts = np.array_split(array, min(at_once, -(-array.nbytes // PART_BYTES)))
        descriptors = [described(part, tag) for tag, part in enumerate(parts)]
        communicator.all_reduce_multiple_with_retry(descriptors, max_in_flight=at_once)

    return allreduce
