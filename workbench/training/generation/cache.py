"""Keys and values of the completions in flight, in room that is set aside ahead of them."""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import DynamicLayer

ROOM = 32  # tokens; and a quarter of what is there


class GrowingLayer(DynamicLayer):
    """A cache layer that is written in place.

    transformers' own joins old and new at every token, which copies the whole layer for one column. Here the buffer has
    room for more tokens than are in it, and grows by a quarter when it is full.
    """

    def __init__(self, keys: Any, values: Any, most: int) -> None:
        """Take over keys and values [B, heads, T, head dim]; `most`: tokens that there will never be more of."""
        super().__init__()
        self.lazy_initialization(keys, values)
        self._most, self._used = most, keys.shape[-2]
        self._keys, self._values = self._longer(keys), self._longer(values)
        self._show()

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Add the keys and values of new tokens [B, heads, new, head dim]; returns all of them."""
        start, end = self._used, self._used + key_states.shape[-2]
        if end > self._keys.shape[-2]:
            self._keys, self._values = self._longer(self.keys), self._longer(self.values)
        self._keys[..., start:end, :], self._values[..., start:end, :] = key_states, value_states
        self._used = end
        self._show()
        return self.keys, self.values

    def batch_select_indices(self, indices: Any) -> None:
        """Keep only these rows."""
        self._keys, self._values = self._keys[indices], self._values[indices]
        self._show()

    def _show(self) -> None:
        self.keys, self.values = self._keys[..., : self._used, :], self._values[..., : self._used, :]

    def _longer(self, states: Any) -> Any:
        used = states.shape[-2]
        size = max(used, min(self._most, used + used // 4 + ROOM))
        room = states.new_empty((*states.shape[:-2], size, states.shape[-1]))
        room[..., :used, :] = states
        return room
