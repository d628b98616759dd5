"""Random programs: what ranks call, drawn from a seed, against numpy. A generator, an oracle, a runner, a file each."""
