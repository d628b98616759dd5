"""This process in its job: how it comes in and leaves, its state, process sets, what all ranks agree on."""
