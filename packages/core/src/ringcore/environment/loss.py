"""Tells the launcher that this rank ends because of another one: it asks who is to blame when a job fails."""

from __future__ import annotations

import contextlib
import json
import os

# Where the launcher looks once this rank has ended.
LOSS_FILE_VARIABLE = "RINGCORE_LOSS_FILE"


def tell_loss(lost_rank: int | None) -> None:
    """Leave word of the rank whose end made an operation of this rank fail.

    Args:
        lost_rank: None: no such thing happened, or it is over, as the job was joined anew.
    """
    path = os.environ.get(LOSS_FILE_VARIABLE)
    if not path:
        return
    # The launcher only loses a hint when this fails.
    with contextlib.suppress(OSError):
        if lost_rank is None:
            os.unlink(path)
        else:
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"lost_rank": lost_rank}, file)
