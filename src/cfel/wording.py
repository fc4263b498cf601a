"""Grammar of messages and pages: numbers with their nouns. Sentences stay where they are used."""


def plural(count: int, noun: str) -> str:
    """A number with its noun: "1 round", "2 rounds", "10,000 devices".

    Args:
        count: how many.
        noun: in the singular, with a plural in -s.
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
