"""TorchX's command line: its commands as classes, each of which calls ours."""
