"""Generation with a KV cache, and sampling."""

from littlelm.inference.generate import generate

__all__ = ["generate"]
