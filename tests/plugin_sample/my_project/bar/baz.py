# baz.py
import torchx.specs as specs


def trainer(name: str) -> specs.AppDef:
    """Says hello.

    Args:
        name: what the app is called
    """
    return specs.AppDef(
        name=name.replace(" ", "-"),
        roles=[
            specs.Role(
                name="trainer",
                image="/tmp",
                entrypoint="echo",
                args=["hello from", name],
                resource=specs.Resource(cpu=1, gpu=0, memMB=128),
            )
        ],
    )
