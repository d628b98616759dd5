"""What the environment says about this process: settings, its place in the job, the libraries that are here."""
