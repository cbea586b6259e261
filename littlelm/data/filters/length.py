"""Documents by length."""

from __future__ import annotations

from littlelm.data.filters.configs import LengthConfig


class Length:
    """See `LengthConfig`."""

    def __init__(self, config: LengthConfig) -> None:
        self.config = config

    def accepts(self, text: str) -> bool:
        """Whether the text is neither too short nor too long."""
        config = self.config
        if not (config.min_characters or 0) <= len(text) <= (config.max_characters or len(text)):
            return False
        if config.min_words is None and config.max_words is None:
            return True
        words = len(text.split())
        return (config.min_words or 0) <= words <= (config.max_words or words)
