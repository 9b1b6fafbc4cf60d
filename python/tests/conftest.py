"""The devices that tests compute on: the CPU, and the first GPU, a software one too."""

import os

import pytest

import rustyflow as rf


def _gpus():
    return [device["name"] for device in rf.devices() if device["name"] != "cpu"]


if os.environ.get("RUSTYFLOW_REQUIRE_GPU") and not _gpus():
    raise RuntimeError("RUSTYFLOW_REQUIRE_GPU is set, and there is no GPU")


@pytest.fixture(params=["cpu", *_gpus()[:1]])
def device(request):
    return request.param


@pytest.fixture
def gpu():
    if not _gpus():
        pytest.skip("no GPU")
    return _gpus()[0]


@pytest.fixture(autouse=True)
def seeded():
    rf.manual_seed(1337)
