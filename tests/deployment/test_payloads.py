"""Models as message bodies: to bytes and back, encoded once however many nodes fetch them."""

import asyncio
import threading

import pytest
import torch

from cfel.deployment.host import ComputeThread
from cfel.deployment.payloads import EncodedModel, EncodedModels, read_model
from cfel.errors import RejectedError
from cfel.learning.models.flat import FlatModel

MODEL = FlatModel(torch.tensor([1.0, -0.0, 3.5]), torch.tensor([7.0]))


def test_models_there_and_back() -> None:
    body = EncodedModel.encode(MODEL).body
    found = read_model(body.join(), MODEL)
    assert found.sha256() == MODEL.sha256() == body.digest
    with pytest.raises(RejectedError, match="12 bytes, 16 expected"):
        read_model(body.join()[:-4], MODEL)


def test_a_model_is_encoded_once_and_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    digest = FlatModel.sha256

    def watch(model: FlatModel) -> bytes:
        threads.append(threading.get_ident())
        return digest(model)

    monkeypatch.setattr(FlatModel, "sha256", watch)

    async def play() -> None:
        compute = ComputeThread()
        models = EncodedModels(compute)
        first, second = await asyncio.gather(models.get(MODEL), models.get(MODEL))
        assert first is second
        compute.close()

    asyncio.run(play())
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
