"""Documents by what is found in them."""

from __future__ import annotations

import re

from littlelm.data.filters.configs import RegexConfig


class Pattern:
    """See `RegexConfig`."""

    def __init__(self, config: RegexConfig) -> None:
        self._patterns = [re.compile(pattern) for pattern in config.drop]

    def accepts(self, text: str) -> bool:
        """Whether none of the patterns is found."""
        return not any(pattern.search(text) for pattern in self._patterns)
