"""Visible GPUs, with a driver that is made up here."""

import sys
from types import ModuleType

import pytest

from dsv4_conformance.implementations import gpus

UUIDS = ["GPU-aa11", "GPU-ab22", "GPU-cc33"]
INSTANCE = "MIG-99"


class Missing(Exception):
    pass


class FakeDriver(ModuleType):
    """Answers as NVML does for three GPUs and one instance of the last; counts who has not signed off."""

    NVMLError = Missing

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"handle {UUIDS[index]}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle.removeprefix("handle ")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in (*UUIDS, INSTANCE):
            raise Missing(uuid)
        return f"handle {uuid}"

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        assert handle == f"handle {INSTANCE}"
        return f"handle {UUIDS[2]}"

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> list[int]:
        return {UUIDS[0]: [9, 0], UUIDS[1]: [8, 6], UUIDS[2]: [10, 0]}[handle.removeprefix("handle ")]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


# Kills: indices sorted, an empty variable read as unset, entries after an invalid one kept, ambiguous prefixes taken.
@pytest.mark.parametrize(
    ("variable", "visible"),
    [
        (None, UUIDS),
        ("", []),
        ("-1", []),
        ("2,0", [UUIDS[2], UUIDS[0]]),
        (" 1 , 2", UUIDS[1:]),
        ("0,7,1", UUIDS[:1]),
        ("1,1", UUIDS[1:2]),
        ("GPU-cc,0", [UUIDS[2], UUIDS[0]]),
        ("GPU-a", []),
        ("GPU-zz", []),
        (INSTANCE, [INSTANCE]),
        ("MIG-00,0", []),
    ],
)
def test_visible_gpus_read_the_variable_as_cuda_does(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, variable: str | None, visible: list[str]
) -> None:
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert gpus.visible_gpus() == visible
    assert driver.open == 0


def test_compute_capability_belongs_to_the_gpu_asked_for(driver: FakeDriver) -> None:
    assert [gpus.compute_capability(uuid) for uuid in (*UUIDS, INSTANCE)] == [(9, 0), (8, 6), (10, 0), (10, 0)]
    assert driver.open == 0


def test_no_gpu_is_visible_without_a_driver(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise Missing("no driver")

    monkeypatch.setattr(driver, "nvmlInit", refuse)
    assert gpus.visible_gpus() == []
    with pytest.raises(RuntimeError, match="GPU-aa11"):
        gpus.compute_capability("GPU-aa11")


def test_no_gpu_is_visible_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus.visible_gpus() == []
