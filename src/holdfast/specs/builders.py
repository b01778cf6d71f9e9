"""Reading parts of an app from the words of a command line."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import UsageError
from holdfast.specs.mounts import BindMount, DeviceMount, MountType, VolumeMount

#: Every way to write an option of a mount, and what it is called here.
_OPTIONS = {
    "type": "type",
    "src": "src",
    "source": "src",
    "dst": "dst",
    "target": "dst",
    "destination": "dst",
    "readonly": "readonly",
    "read_only": "readonly",
    "perm": "perm",
}
_TAKES = {
    MountType.BIND: {"src", "dst", "readonly"},
    MountType.VOLUME: {"src", "dst", "readonly"},
    MountType.DEVICE: {"src", "dst", "perm"},
}
_NEEDS = {
    MountType.BIND: ("src", "dst"),
    MountType.VOLUME: ("src", "dst"),
    MountType.DEVICE: ("src",),
}


class MountError(UsageError, KeyError):
    """An option of a mount is unknown, missing, or without a mount that it belongs to."""

    __str__ = Exception.__str__  # a `KeyError` puts its text in quotes


def parse_mounts(opts: list[str]) -> list[BindMount | VolumeMount | DeviceMount]:
    """Read mounts from a flat list of words; each mount begins at its `type=`.

        parse_mounts(["type=bind", "src=~/data", "dst=/data", "readonly", "type=device", "src=/dev/fuse"])

    `src` may be written `source`, and `dst` `target` or `destination`. A device takes `perm=rwm` and appears under
    its own name unless `dst` says otherwise. Raises `UsageError` for an invalid option.
    """
    mounts: list[dict[str, str]] = []
    for word in opts:
        key, has_value, value = word.strip().partition("=")
        option = _OPTIONS.get(key)
        if option is None:
            raise MountError(f"'{word}' is not an option of a mount; the options are: {', '.join(_OPTIONS)}")
        if not has_value and option != "readonly":
            raise UsageError(f"'{word}' of a mount needs a value: write {word}=...")
        if option == "type":
            mounts.append({})
        elif not mounts:
            raise MountError(f"'{word}' belongs to no mount: each mount begins with type={_one_of(MountType)}")
        if option in mounts[-1]:
            raise UsageError(f"a mount has '{key}' twice ({mounts[-1][option]} and {value}); begin each with type=...")
        mounts[-1][option] = value
    return [_mount(**mount) for mount in mounts]


def _mount(type: str, **options: str) -> BindMount | VolumeMount | DeviceMount:  # noqa: A002
    if type not in list(MountType):
        raise UsageError(f"'{type}' is not a type of mount; it must be {_one_of(MountType)}")
    kind = MountType(type)
    if surplus := [option for option in options if option not in _TAKES[kind]]:
        raise UsageError(f"a mount of type={kind} takes no '{surplus[0]}'")
    if missing := [option for option in _NEEDS[kind] if not options.get(option)]:
        raise MountError(f"a mount of type={kind} needs {missing[0]}=...")
    src, dst = options["src"], options.get("dst", "")
    match kind:
        case MountType.BIND:
            return BindMount(_at_home(src), dst, _flag(options))
        case MountType.VOLUME:
            return VolumeMount(src, dst, _flag(options))
        case MountType.DEVICE:
            return _device(src, dst or src, options.get("perm", "rwm"))


def _at_home(path: str) -> str:
    """Replace `~` by the submitting user's home; other paths belong to the executing machine and stay as they are."""
    if not path.startswith("~"):
        return path
    from holdfast.home import expand  # which costs as much to import as all of this package

    return str(expand(path))


def _device(src: str, dst: str, permissions: str) -> DeviceMount:
    if not permissions or set(permissions) - set("rwm"):
        raise UsageError(f"perm={permissions} of the device {src} must be made of r, w and m")
    return DeviceMount(src, dst, permissions)


def _flag(options: dict[str, str]) -> bool:
    text = options.get("readonly", "false").lower()
    if text not in ("", "true", "1", "yes", "false", "0", "no"):
        raise UsageError(f"readonly={text} of a mount is neither true nor false")
    return text in ("", "true", "1", "yes")


def _one_of(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}"
