"""The small helpers of TorchX that programs import."""
