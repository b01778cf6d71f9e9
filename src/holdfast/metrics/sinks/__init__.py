"""Our metrics sinks; each is made by a function `(argument: str) -> MetricHandler`."""
