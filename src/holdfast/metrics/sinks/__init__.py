"""Where values go: one small module per sink, each with `create_handler(argument) -> MetricHandler`."""
