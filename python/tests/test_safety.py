"""Threads, callbacks and the end of the process: nothing crashes, and memory stays."""

import subprocess
import sys
import threading

import pytest

import rustyflow as rf


def in_threads(count, body):
    errors = []

    def run(number):
        try:
            body(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not errors, errors


def test_ten_thousand_tensors_of_several_threads_leave_nothing(device):
    count = 2500 if device == "cpu" else 250

    def body(number):
        w = rf.full((8, 8), float(number), device=device, requires_grad=True)
        for i in range(count):
            y = (w @ w + i).tanh()
            if i % 50 == 0:
                y.sum().backward()
        assert w.grad.shape == (8, 8)

    in_threads(4, body)
    rf.synchronize(device)
    before = rf.device_stats(device)["memory"]["used_bytes"]
    for _ in range(2):
        in_threads(4, body)
    rf.synchronize(device)
    # Some numbers that operators met are kept.
    assert rf.device_stats(device)["memory"]["used_bytes"] <= before + 64 * 1024


def test_what_one_thread_reads_and_another_writes_works_or_raises(device):
    w = rf.ones(16, device=device, requires_grad=True)
    optimizer = rf.optim.SGD([w], 0.01)

    def use(number):
        if number == 0:
            optimizer.step()
        elif number == 1:
            w.data = w.detach() * 1.0
        else:
            (w * w).sum().item()

    def body(number):
        for _ in range(20):
            try:
                use(number)
            except RuntimeError as error:
                assert "share memory" in str(error)

    in_threads(4, body)
    assert (w * 1.0).tolist() == [1] * 16


def test_recording_is_switched_per_thread():
    seen = []
    with rf.no_grad():
        in_threads(1, lambda _: seen.append(rf.is_grad_enabled()))
    assert seen == [True]


@pytest.mark.parametrize("length", [100_000])
def test_a_long_chain_is_dropped_and_differentiated(length):
    x = rf.ones(1, requires_grad=True)
    y = x
    for _ in range(length):
        y = y + 1.0
    del y
    y = x
    for _ in range(length):
        y = y + 1.0
    y.backward()
    assert x.grad.tolist() == [1]


ENDS = {
    "in the middle of work": "x = x @ x",
    "by an exception": "x = x @ x; raise SystemExit(3)",
    "with a thread that computes": """
import threading
def work():
    y = x
    while True:
        y = (y @ x).tanh()
threading.Thread(target=work, daemon=True).start()
import time; time.sleep(0.3)
""",
    "within a profile": "p = rf.profile(device, show=False); p.__enter__(); x = x @ x",
    "with an optimizer": "o = rf.optim.AdamW([x.requires_grad_()]); (x * x).sum().backward(); o.step()",
}


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=pytest.mark.slow if "thread" in how else ()) for how in ENDS]
)
def test_the_process_ends_while_a_device_works(device, how):
    program = f"""
import rustyflow as rf
device = {device!r}
x = rf.randn(256, 256, device=device)
for _ in range(10):
    x = (x @ x).tanh()
{ENDS[how]}
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == (3 if how == "by an exception" else 0), (how, result)
    assert "panicked" not in result.stderr and "Fatal" not in result.stderr, result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_forked_process_raises_instead_of_hanging():
    program = """
import os, rustyflow as rf
x = rf.ones(512, 512)
y = x @ x
if os.fork() == 0:
    try:
        x @ x
    except RuntimeError as error:
        os._exit(7 if "spawn" in str(error) else 1)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
assert (x @ x).tolist() == y.tolist()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_it_is_imported_without_a_gpu_or_a_loader():
    program = """
import os
for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
    os.environ[name] = "/dev/null"
import rustyflow as rf
assert [device["name"] for device in rf.devices()] == ["cpu"], rf.devices()
assert not rf.is_available() and rf.ones(2).sum().item() == 2
try:
    rf.ones(2, device="gpu")
except RuntimeError as error:
    assert "no usable GPU" in str(error)
else:
    raise AssertionError("there is no GPU")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
