"""How fast a state on a GPU is copied to host memory, beside a plain copy: `python bench/scripts/gpu_snapshot.py`."""

from __future__ import annotations

import time

import torch

from holdfast.torch import TorchState

GIB = 1 << 30


def main() -> None:
    blocks = 64
    model = torch.nn.ParameterList([torch.randn(GIB // 4 // blocks, device="cuda") for _ in range(blocks)])
    state = TorchState(model=model)
    plain = torch.cat([parameter.detach() for parameter in model])
    host = torch.empty_like(plain, device="cpu", pin_memory=True)

    def timed(work: object) -> float:
        best = float("inf")
        for _ in range(5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            work()  # type: ignore[operator]
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
        return best * 1000

    print(f"plain pinned copy of 1 GiB: {timed(lambda: host.copy_(plain, non_blocking=True)):.1f} ms")
    print(f"capture_snapshot of 1 GiB:  {timed(state.capture_snapshot):.1f} ms")
    snapshot = state.capture_snapshot()
    print(f"apply_snapshot of 1 GiB:    {timed(lambda: state.apply_snapshot(snapshot)):.1f} ms")
    print(f"begin:                      {timed(state.begin):.3f} ms")


if __name__ == "__main__":
    main()
