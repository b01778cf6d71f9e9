"""Trees of arrays as a state: what JAX calls pytrees, with arrays of JAX or of numpy in them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.train.state import TreeState


class PytreeState(TreeState):
    """Trees of arrays as attributes: `PytreeState(params=params, opt_state=opt_state)`, then `state.params = ...`.

    A tree is made of dicts, lists, tuples and named tuples; if the program uses JAX, of everything that JAX knows as
    a pytree, as the states of optax and flax are. Arrays of JAX never change and are not copied; those of numpy are
    copied before every step. All workers must give trees of the same structure.
    """

    def __init__(self, **trees: Any) -> None:
        self.__dict__.update(trees)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Every tree that was given is an attribute."""

        def __setattr__(self, name: str, value: Any) -> None:
            """Every tree can be replaced."""

    def tree(self) -> dict[str, list[Any]]:
        """Return the arrays of every tree, in its order: the structure is the same on all workers."""
        return {name: flatten(value)[0] for name, value in self.__dict__.items()}

    def replace(self, tree: Mapping[str, list[Any]]) -> None:
        """Replace the arrays of every tree."""
        for name, leaves in tree.items():
            own, rebuild = flatten(self.__dict__.get(name))
            if name not in self.__dict__ or len(own) != len(leaves):
                raise UsageError(
                    f"the state that was given has {len(leaves)} arrays in '{name}', this worker's has {len(own)}: "
                    "all workers must make the same trees"
                )
            self.__dict__[name] = rebuild(leaves)

    def capture_snapshot(self) -> Any:
        """Return the arrays of every tree; those that can change are copies."""
        return {name: [_own(leaf) for leaf in leaves] for name, leaves in self.tree().items()}

    def apply_snapshot(self, snapshot: Any) -> None:
        """Take the values of a snapshot."""
        self.replace({name: [_own(leaf) for leaf in leaves] for name, leaves in snapshot.items()})


#: Makes a tree of the same structure from as many leaves.
Rebuild = Callable[[list[Any]], Any]


def flatten(tree: Any) -> tuple[list[Any], Rebuild]:
    """Return the leaves of a tree and a function that makes a tree from leaves; by JAX's rules if JAX is in use."""
    if "jax" in sys.modules:
        from jax import tree_util

        leaves, structure = tree_util.tree_flatten(tree)
        return leaves, lambda given: tree_util.tree_unflatten(structure, given)
    leaves = []
    _collect(tree, leaves)
    return leaves, lambda given: _hang(tree, iter(given))


def _collect(tree: Any, leaves: list[Any]) -> None:
    if isinstance(tree, dict):
        for key in sorted(tree):
            _collect(tree[key], leaves)
    elif isinstance(tree, list | tuple):
        for item in tree:
            _collect(item, leaves)
    elif tree is not None:
        leaves.append(tree)


def _hang(tree: Any, leaves: Any) -> Any:
    if isinstance(tree, dict):
        made = {key: _hang(tree[key], leaves) for key in sorted(tree)}
        return {key: made[key] for key in tree}
    if isinstance(tree, list | tuple):
        items = [_hang(item, leaves) for item in tree]
        if isinstance(tree, list):
            return items
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    return None if tree is None else next(leaves)


def _own(leaf: Any) -> Any:
    """Copy an array of numpy; other leaves never change."""
    return leaf.copy() if type(leaf).__module__.partition(".")[0] == "numpy" else leaf
