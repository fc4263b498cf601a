"""CIFAR-10 and FEMNIST in miniature: Parquet files as on the Hugging Face hub, with noise for images."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

WRITERS, SAMPLES_OF_WRITER = 6, 30


def write_cifar10(folder: Path) -> Path:
    """120 training and 30 test images, every class among them."""
    folder.mkdir(parents=True)
    for part, count in (("train", 120), ("test", 30)):
        labels = np.arange(count) % 10
        images = _images((count, 32, 32, 3), labels)
        pq.write_table(pa.table({"img": images, "label": labels}), folder / f"{part}.parquet")
    return folder


def write_femnist(folder: Path) -> Path:
    """Six writers with thirty characters each, the last ten for testing."""
    folder.mkdir(parents=True)
    count = WRITERS * SAMPLES_OF_WRITER
    labels = np.arange(count) % 62
    columns = {
        "image": _images((count, 28, 28), labels),
        "writer_id": [f"f{n // SAMPLES_OF_WRITER}" for n in range(count)],
        "character": labels,
        "leaf_split": ["train" if n % SAMPLES_OF_WRITER < 20 else "test" for n in range(count)],
    }
    pq.write_table(pa.table(columns), folder / "femnist.parquet")
    return folder


def _images(shape: tuple[int, ...], labels: np.ndarray) -> list[dict[str, object]]:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return [
        {"bytes": _png(image), "path": f"{label}.png"} for image, label in zip(pixels, labels, strict=True)
    ]


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()
