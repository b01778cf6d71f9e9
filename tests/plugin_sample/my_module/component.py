from torchx.specs import AppDef, Role, get_named_resources


def test_app(resource: str) -> AppDef:
    return AppDef(
        name="test_app",
        roles=[
            Role(
                name="...",
                image="...",
                entrypoint="echo",
                resource=get_named_resources(resource),
            )
        ],
    )
