"""Generation with a KV cache, and sampling."""

from littlelm.inference.generate import context_of, generate, note_on_speed

__all__ = ["context_of", "generate", "note_on_speed"]
