"""Process sets, under Horovod's names."""

from ringcore import ProcessSet, add_process_set, global_process_set, is_initialized, remove_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "is_initialized", "remove_process_set"]
