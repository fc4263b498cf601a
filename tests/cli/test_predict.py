"""`cfel predict`: a trained model on samples, from a file alone or from a run directory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cfel.learning.data import digits
from tests.cli.conftest import Run
from tests.cli.test_export import finished

__all__ = ["finished"]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty digits, as bytes."""
    path = tmp_path_factory.mktemp("samples") / "samples.npy"
    np.save(path, digits().test_inputs[:40].numpy())
    return path


def test_a_file_alone_predicts_what_the_run_does(
    run: Run, finished: Path, samples: Path, tmp_path: Path
) -> None:
    """The file knows how bytes are scaled; the consensus model is the same in both."""
    file, scores = tmp_path / "model.safetensors", tmp_path / "scores.npy"
    assert run("export", finished, "--to", file).code == 0
    answer = run("predict", file, samples, "--to", scores, "--json")
    assert (answer.code, answer.err) == (0, "")
    found = answer.document["samples"]
    assert found == run("predict", finished, samples, "--json").document["samples"]
    outputs = np.load(scores)
    assert outputs.shape == (40, 10)
    assert [each["label"] for each in found] == outputs.argmax(1).tolist()
    assert all(0.1 <= each["probability"] <= 1 for each in found)
    lines = run("predict", file, samples).out.splitlines()
    assert lines[0] == "sample: class (probability)"
    assert lines[1] == f"0: {found[0]['label']} ({100 * found[0]['probability']:.1f} %)"


def test_one_sample_and_an_archive(run: Run, finished: Path, samples: Path, tmp_path: Path) -> None:
    images = np.load(samples)
    np.save(tmp_path / "one.npy", images[0])
    np.savez(tmp_path / "both.npz", images=images, digits=np.zeros(40))
    first = run("predict", finished, tmp_path / "one.npy", "--json").document["samples"]
    all_of_them = run("predict", finished, tmp_path / "both.npz", "--json").document["samples"]
    assert [first[0]["label"], len(all_of_them)] == [all_of_them[0]["label"], 40]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            np.zeros((2, 8, 8), np.uint8),
            "samples are uint8 of shape (8, 8); the model takes uint8 of shape (1, 8, 8)",
        ),
        (np.zeros((2, 1, 8, 8), np.float32), "samples are float32 of shape (1, 8, 8); the model takes"),
        (np.zeros((0, 1, 8, 8), np.uint8), "holds no samples"),
        (np.array(["text"]), "the model takes"),
        (b"garbage", "must be an .npy or .npz file of numbers, as numpy.save"),
        (None, "it does not exist"),
    ],
)
def test_samples_that_do_not_fit(
    run: Run, finished: Path, tmp_path: Path, content: object, words: str
) -> None:
    path = tmp_path / "samples.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, np.ndarray):
        np.save(path, content)
    answer = run("predict", finished, path)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err


def test_pickles_are_not_loaded(run: Run, finished: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "samples.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    answer = run("predict", finished, tmp_path / "samples.npy")
    assert "must be an .npy or .npz file of numbers" in answer.err
    assert "allow_pickle" not in answer.err


def test_files_that_are_no_models(run: Run, finished: Path, samples: Path, tmp_path: Path) -> None:
    file, bare = tmp_path / "model.safetensors", tmp_path / "bare.safetensors"
    assert run("export", finished, "--to", file).code == 0
    save_file(load_file(file), bare)
    assert "does not say what goes into the model" in run("predict", bare, samples).err
    bare.write_bytes(b"garbage")
    assert "cannot be read as safetensors" in run("predict", bare, samples).err
    assert "only for a run directory" in run("predict", file, samples, "--device", 1).err


@pytest.mark.parametrize(("old", "new"), [(b"uint8", b"void9"), (b":10,", b":-1,")])
def test_a_form_that_is_none(
    run: Run, finished: Path, samples: Path, tmp_path: Path, old: bytes, new: bytes
) -> None:
    file = tmp_path / "model.safetensors"
    assert run("export", finished, "--to", file).code == 0
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new))
    answer = run("predict", file, samples)
    assert (answer.code, "cannot be read as safetensors" in answer.err) == (2, True)


def test_code_in_a_file_needs_trust(run: Run, finished: Path, samples: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    assert run("export", finished, "--to", file).code == 0
    content = file.read_bytes()
    # Of the same length, so that the header stays valid.
    name = b'\\"model\\":\\"mlp\\"'
    assert name in content
    file.write_bytes(content.replace(name, b'\\"model\\":\\"o:s\\"'))
    answer = run("predict", file, samples)
    assert answer.code == 2
    assert "o:s" in answer.err


def test_it_does_not_slow_down_the_help_of_others() -> None:
    code = "import cfel.cli.options, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
