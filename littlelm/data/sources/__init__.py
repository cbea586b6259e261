"""Where documents come from: text files, JSON Lines, parquet, and the corpus of a pip-installable package."""
