"""What is left out of a corpus: documents judged one by one, and documents that others are copies of."""
