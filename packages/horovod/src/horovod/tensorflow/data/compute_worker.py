"""Horovod's name for `ringcore_tensorflow.data_service.compute_worker`."""

from ringcore_tensorflow.data_service.compute_worker import main, run_commandline

__all__ = ["main", "run_commandline"]

if __name__ == "__main__":
    run_commandline()
