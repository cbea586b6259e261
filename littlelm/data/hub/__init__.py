"""Data sets of a Hugging Face hub: which files there are, fetching them whole and checked, what that will cost."""
