"""Which block holds which content: by its hash, and by what it continues."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """One full block: the hash of all tokens through it, that of those before it, and its own tokens."""

    hash: bytes
    parent: bytes
    tokens: array[int]


class PrefixIndex:
    """Content of blocks, both ways. Owned by the block pool."""

    def __init__(self) -> None:
        self._content_of: dict[int, Content] = {}
        self._block_of: dict[bytes, int] = {}
        self._children: dict[bytes, dict[int, None]] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._content_of

    def find(self, content_hash: bytes) -> int | None:
        return self._block_of.get(content_hash)

    def content(self, block: int) -> Content:
        return self._content_of[block]

    def children(self, parent: bytes) -> Iterable[int]:
        """Blocks that continue the content named `parent`, in the order they came."""
        return self._children.get(parent, ())

    def add(self, block: int, content: Content) -> bool:
        """False, and nothing is changed, if another block has this content already."""
        if content.hash in self._block_of:
            return False
        self._block_of[content.hash] = block
        self._content_of[block] = content
        self._children.setdefault(content.parent, {})[block] = None
        return True

    def remove(self, block: int) -> Content | None:
        """Forget the block's content; what it was, if there was any."""
        content = self._content_of.pop(block, None)
        if content is not None:
            del self._block_of[content.hash]
            self._drop_child(content.parent, block)
        return content

    def check(self) -> None:
        """Raises RuntimeError when the directions disagree."""
        forward = {content.hash: block for block, content in self._content_of.items()}
        children = {block for group in self._children.values() for block in group}
        if forward != self._block_of or children != set(self._content_of):
            raise RuntimeError("the prefix index is out of step with the blocks")

    def _drop_child(self, parent: bytes, block: int) -> None:
        siblings = self._children[parent]
        del siblings[block]
        if not siblings:
            del self._children[parent]
