"""Sound as pictures: WAV files become spectrograms, one byte per frequency band and moment.

A spectrogram has 40 bands on the mel scale and a column every 10 milliseconds. A byte is the power of a band
in decibels, from 80 below that of a full-scale sine to the sine's own. So sound is trained on, cached and
scaled as images are, and any model for images takes it.
"""

import io
import wave
from functools import lru_cache

import numpy as np

from cfel.arrays import ByteArray, FloatArray
from cfel.errors import InputError

BANDS = 40
_WINDOW_SECONDS, _STEP_SECONDS = 0.025, 0.010
_RANGE_DECIBELS = 80.0


def read_wav(content: bytes | None, where: str) -> tuple[FloatArray, int]:
    """Samples in [−1, 1], averaged over channels, and how many there are per second.

    Raises:
        InputError: it is not a WAV file of 16-bit numbers.
    """
    try:
        with wave.open(io.BytesIO(content or b"")) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise InputError(f"{where}: not a WAV file: {error}") from error
    if width != 2:
        raise InputError(f"{where}: has {8 * width} bits per number, must have 16")
    samples = np.frombuffer(frames, dtype="<i2").astype(np.float64) / 2**15
    return samples.reshape(-1, channels).mean(1), rate


def make_spectrogram(samples: FloatArray, rate: int, seconds: float) -> ByteArray:
    """Bands × moments of the first seconds, with silence where there are not so many."""
    clip = np.zeros(round(seconds * rate))
    clip[: samples.size] = samples[: clip.size]
    window = np.hanning(round(_WINDOW_SECONDS * rate))
    frames = np.lib.stride_tricks.sliding_window_view(clip, window.size)[:: round(_STEP_SECONDS * rate)]
    # A full-scale sine has power 1.
    points = 2 * window.size
    power = np.square(np.abs(np.fft.rfft(frames * window, points)) * 2 / window.sum())
    bands = _make_filters(rate, points) @ power.T
    decibels = 10 * np.log10(np.maximum(bands, 10 ** (-_RANGE_DECIBELS / 10)))
    return np.asarray(np.rint((1 + np.minimum(decibels, 0) / _RANGE_DECIBELS) * 255), dtype=np.uint8)


@lru_cache(maxsize=4)
def _make_filters(rate: int, points: int) -> FloatArray:
    """Bands × frequencies: triangles that are equally wide on the mel scale (O'Shaughnessy's formula)."""
    frequencies = np.fft.rfftfreq(points, 1 / rate)
    mels = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), BANDS + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    low, middle, high = (edges[k : k + BANDS, None] for k in range(3))
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.asarray(np.maximum(0, np.minimum(rising, falling)))
