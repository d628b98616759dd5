"""Data that a job of its own prepares for the training, by TensorFlow's data service."""
