"""little-lm: one YAML file in, a trained language model out, on your own money."""

__version__ = "0.1.0"
