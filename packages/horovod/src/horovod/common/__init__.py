"""What all of Horovod's frameworks share."""
