from littlelm.data.filters.configs import TextConfig


def normalise(text: str, config: TextConfig) -> str:
    return text
