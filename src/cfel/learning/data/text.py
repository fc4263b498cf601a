"""Text as numbers: characters or words, cut into samples of one length.

Characters are the bytes of UTF-8, so that every text has the same 256 codes and nobody needs a table. Words
are numbered by how often they occur in the training samples. The code 0 fills up what is too short.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cfel.arrays import IntArray

BYTES = 256
VOCABULARY = 8192
"""Codes of words: 0 for nothing, 1 for a rare word, the others for the most frequent ones."""

_WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")

Codes = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TextCode:
    """How texts become samples."""

    length: int  # codes in a sample
    words: Mapping[str, int] | None = None  # the code of each known word; None for characters

    @property
    def codes(self) -> int:
        return BYTES if self.words is None else VOCABULARY

    def encode(self, text: str) -> Codes:
        if self.words is None:
            return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
        return np.array([self.words.get(word, 1) for word in split_words(text)], dtype=np.int32)

    def fit(self, texts: Iterable[str]) -> Codes:
        """One row per text: its last codes, after zeros where it is shorter."""
        rows = [self.encode(text)[-self.length :] for text in texts]
        fitted = np.zeros((len(rows), self.length), dtype=np.int32)
        for place, row in zip(fitted, rows, strict=True):
            place[self.length - row.size :] = row
        return fitted

    def make_windows(self, texts: Sequence[str]) -> tuple[Codes, IntArray, IntArray]:
        """What comes next, at every place of every text but its first.

        Returns:
            The codes before each place, the code there, and the number of the text.
        """
        windows, rows = [np.zeros((0, self.length + 1), dtype=np.int32)], [np.zeros(0, dtype=np.int64)]
        for number, text in enumerate(texts):
            codes = self.encode(text)
            if codes.size < 2:
                continue
            padded = np.concatenate([np.zeros(self.length, dtype=np.int32), codes])
            windows.append(np.lib.stride_tricks.sliding_window_view(padded, self.length + 1)[1:])
            rows.append(np.full(len(windows[-1]), number, dtype=np.int64))
        whole = np.concatenate(windows)
        return whole[:, :-1].copy(), whole[:, -1].astype(np.int64), np.concatenate(rows)


def split_words(text: str) -> list[str]:
    """Words and signs in small letters."""
    return _WORD.findall(text.lower())


def number_words(texts: Iterable[str]) -> dict[str, int]:
    """Numbers the most frequent words from 2, equally frequent ones by the alphabet."""
    counts = Counter(word for text in texts for word in split_words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[: VOCABULARY - 2], start=2)}
