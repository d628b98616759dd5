"""The sub-commands of `ringcore`, each a module with a function `main(argv) -> exit code`."""
