from torchx.specs import Resource


def gpu_x1() -> Resource:
    return Resource(cpu=8, gpu=1, memMB=61_000)


def gpu_x2() -> Resource:
    return Resource(cpu=16, gpu=2, memMB=122_000)


def gpu_x3() -> Resource:
    return Resource(cpu=32, gpu=4, memMB=244_000)


def gpu_x4() -> Resource:
    return Resource(cpu=64, gpu=8, memMB=488_000)
