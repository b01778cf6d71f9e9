"""What tests of Holdfast and of its plugins need: contract suites, and servers that fail on demand."""
