"""Names for shapes that hold values of many kinds, where nothing closer is true. Everything may stand on this."""

from __future__ import annotations

from typing import Any

# Named values: a JSON object, settings, keyword arguments.
Fields = dict[str, Any]
