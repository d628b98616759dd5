"""The program of a server: it adds up what ranks send it, and steps optimizers that they order, until they have left.

It runs none of the user's code. Ranks that leave, or fail, may come again: whoever has started them ends it.
"""

from __future__ import annotations

import logging
import os

from ringcore._errors import InvalidArgument, RingcoreError
from ringcore.bootstrap.sockets import RanksMissingError
from ringcore.environment.placement import find_placement
from ringcore.job.attention import start_attention_thread
from ringcore.job.connect import connect_context
from ringcore.job.lifecycle import shutdown
from ringcore.job.state import set_context
from ringcore.job.updates import Updates
from ringcore.job.watch import start_watch

_log = logging.getLogger("ringcore")


def serve() -> None:
    """Meet the ranks once, and serve them until all have left or the job has failed.

    Raises:
        BootstrapError: They could not be connected with.
    """
    current = connect_context(None, None)
    set_context(current)
    try:
        current.attention_thread = start_attention_thread(current)
        start_watch(current)
        Updates(current).run()  # whoever waits for requests carries out what the ranks agree on meanwhile
        current.runtime.serve()
    except RingcoreError as error:  # The ranks are told the same, and say so.
        _log.info("rank %d (server %d): %s", current.rank, current.rank - current.size, error)
    finally:
        shutdown()


def main() -> None:
    """Serve, again and again."""
    if not find_placement(os.environ).serves:
        raise InvalidArgument("this process is no server of a job: `ringrun --servers N` starts them")
    while True:
        try:
            serve()
        except RanksMissingError as error:  # So do those that are there.
            _log.info("the ranks are waited for again: %s", error)


if __name__ == "__main__":
    main()
