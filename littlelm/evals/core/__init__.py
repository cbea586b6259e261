"""CORE: 22 tasks that a base model is asked in context, scored as DCLM and nanochat score them (arXiv:2406.11794)."""
