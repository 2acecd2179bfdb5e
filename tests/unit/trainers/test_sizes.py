"""The models of the benches train, with Opacus and with this library: `make test-torch`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("opacus", reason="Opacus is not installed: make test-torch")
from bench import gpu, sizes  # noqa: E402


def test_sums_are_compared_where_the_device_is_the_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "steps_on", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu"])
    gpu.main()
    assert capsys.readouterr().out.count("equal") == 9


def test_a_device_with_other_sums_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sum_on = gpu.sum_on

    def other(device: str, *arguments: Any) -> Any:
        sums, norms = sum_on("cpu", *arguments)
        return (sums, norms) if device == "cpu" else (sums + (np.arange(len(sums)) == 9), norms)

    monkeypatch.setattr(gpu, "sum_on", other)
    assert not gpu.compare("cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    gpu.main()
    assert "Not run" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", sizes.SIZES)
@pytest.mark.parametrize("method", sizes.METHODS)
def test_every_trained_weight_moves(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "LAYERS", 1)
    networks: list[Any] = []

    def network() -> Any:
        networks.append(sizes.SIZES[name].network())
        return networks[0]

    step = sizes.step_of(sizes.Size("", network, 2, 64), method, "cpu", 2)
    before = [one.detach().clone() for one in networks[0].parameters()]
    step()
    step()
    for old, new in zip(before, networks[0].parameters(), strict=True):
        assert torch.equal(old, new) != new.requires_grad
