from __future__ import annotations

from typing import Literal

from pydantic import Field

from littlelm.config.base import ConfigModel
from littlelm.registry import declare_kind

declare_kind("filter", "judges documents")


class TextConfig(ConfigModel):
    """What is done to the text of a document before anything else."""

    unicode: Literal["none", "nfc"] = Field("none", description="normal form")
    control_characters: Literal["keep", "remove"] = Field("keep", description="control characters")
    max_invalid_fraction: float = Field(0.01, ge=0, le=1, description="share of records not UTF-8")
