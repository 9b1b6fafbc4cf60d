"""Modules, losses and optimizers, beside NumPy's arithmetic and PyTorch's formulas."""

import math
import pickle

import numpy as np
import pytest

import rustyflow as rf
from rustyflow import nn, optim


def test_a_module_names_what_it_learns():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4))
            self.scale = nn.Parameter(rf.ones(1))
            self.shift = rf.ones(1)  # Collects no gradient: data.

        def forward(self, x):
            return self.body(x) * self.scale + self.shift

    net = Net()
    names = [name for name, _ in net.named_parameters()]
    assert names == ["scale", "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias"]
    assert [name for name, _ in net.named_modules()] == ["", "body", "body.0", "body.1", "body.2"]
    assert [buffer.tolist() for buffer in net.buffers()] == [[0] * 4, [1] * 4]
    assert [name for name, _ in net.named_buffers()] == ["body.2.running_mean", "body.2.running_var"]
    assert net(rf.randn(5, 3)).shape == (5, 4)
    assert "in_features=3" in repr(net) and "(2): BatchNorm1d" in repr(net)
    assert not any(module.training for module in net.eval().modules())
    with pytest.raises(NotImplementedError, match="Module defines no forward"):
        nn.Module()(1)


def test_frozen_parameters_stay_part_of_the_state(gpu):
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    net[0].requires_grad_(False)
    assert [p.requires_grad for p in net.parameters()] == [False, False, True, True]
    assert len(net.state_dict()) == 4 and all(p.device == gpu for p in net.to(gpu).parameters())
    with pytest.raises(ValueError, match="leave frozen ones out"):
        optim.SGD(net.parameters())
    before = net.state_dict()
    optimizer = optim.SGD((p for p in net.parameters() if p.requires_grad), 0.1)
    net(rf.ones(4, 2, device=gpu)).sum().backward()
    optimizer.step()
    moved = [before[name].tolist() != t.tolist() for name, t in net.state_dict().items()]
    assert moved == [False, False, True, True]


def test_what_is_no_module_is_refused():
    class Hasty(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match="super"):
        Hasty()
    with pytest.raises(TypeError, match="holds modules"):
        nn.Sequential(rf.zeros(2))


def test_a_shared_parameter_comes_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.second = nn.Linear(2, 2)
            self.second.weight = self.first.weight

    assert len(list(Tied().parameters())) == 3


def test_states_go_through_files(tmp_path, device):
    def net():
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2)).to(device)

    first, second, x = net(), net(), rf.randn(2, 2, 4, 4, device=device)
    first(x)
    path = tmp_path / "net.safetensors"
    rf.save_file(first.state_dict(), path)
    second.load_state_dict(rf.load_file(path))
    assert first.eval()(x).tolist() == second.eval()(x).tolist()
    state = first.state_dict()
    state["3.bias"] = np.zeros(3, np.float32)
    state.pop("0.bias")
    state["extra"] = rf.zeros(1)
    before = second.state_dict()
    with pytest.raises(ValueError, match="0.bias is missing; extra is unexpected; 3.bias is"):
        second.load_state_dict(state)
    assert all(before[name].tolist() == t.tolist() for name, t in second.state_dict().items())
    second.load_state_dict({"3.weight": np.ones((2, 12)), "extra": rf.zeros(1)}, strict=False)
    assert second[3].weight.tolist() == [[1] * 12] * 2 and second[0].bias.tolist() == before["0.bias"].tolist()
    with pytest.raises(OSError):
        rf.load_file(tmp_path / "none")
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="damaged"):
        rf.load_file(path)


def test_layers_compute_their_formulas(device):
    x = rf.randn(4, 6, device=device)
    array = x.numpy()
    linear = nn.Linear(6, 3).to(device)
    expected = array @ linear.weight.numpy().T + linear.bias.numpy()
    np.testing.assert_allclose(linear(x).numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(linear(x[0]).numpy(), expected[0], atol=1e-5)
    norm = nn.LayerNorm(6).to(device)
    centred = array - array.mean(-1, keepdims=True)
    expected = centred / np.sqrt(array.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(norm(x).numpy(), expected, atol=1e-5)
    expected = array / np.sqrt((array**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(nn.RMSNorm(6).to(device)(x).numpy(), expected, atol=1e-5)
    table = nn.Embedding(5, 2).to(device)
    ids = rf.tensor([[4, 0], [1, 1]], device=device)
    assert (table(ids).numpy() == table.weight.numpy()[[[4, 0], [1, 1]]]).all()
    dropout = nn.Dropout(0.5)
    assert dropout(x).tolist() != array.tolist() and dropout.eval()(x).tolist() == array.tolist()
    bound = 1 / math.sqrt(6)
    assert linear.weight.amax().item() <= bound and linear.weight.amin().item() < -bound / 4


def test_images_and_sequences_have_their_shapes(device):
    x = rf.randn(2, 3, 8, 8, device=device)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 4))
    assert net.to(device)(x).shape == (2, 4, 2, 2)
    assert nn.ConvTranspose2d(3, 2, 2, stride=2).to(device)(x).shape == (2, 2, 16, 16)
    assert nn.AdaptiveAvgPool2d((1, 2))(nn.AvgPool2d(2)(x)).shape == (2, 3, 1, 2)
    assert nn.Conv1d(3, 5, 3).to(device)(x[:, :, 0]).shape == (2, 5, 6)
    with pytest.raises(ValueError, match="conv2d"):
        nn.Conv2d(2, 4, 3).to(device)(x)
    sequence = rf.randn(2, 5, 3, device=device)
    lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1).to(device)
    y, (h, c) = lstm(sequence)
    assert (y.shape, h.shape, c.shape) == ((2, 5, 8), (4, 2, 4), (4, 2, 4))
    y.sum().backward()
    assert all(p.grad.abs().sum().item() > 0 for p in lstm.parameters())
    for kind in (nn.RNN, nn.GRU):
        y, h = kind(3, 4).to(device)(sequence.transpose(0, 1))
        assert (y.shape, h.shape) == ((5, 2, 4), (1, 2, 4))
        assert y[-1].tolist() == h[0].tolist()
    attention = nn.MultiheadAttention(4, 2).to(device)
    z = rf.randn(2, 5, 4, device=device)
    assert attention(z, z, z, is_causal=True).shape == (2, 5, 4)


def test_losses_are_their_formulas(device):
    x, t = rf.randn(5, 3, device=device), rf.randn(5, 3, device=device)
    a, b = x.numpy(), t.numpy()
    ids = np.array([0, 2, 1, 1, 0])
    targets = rf.tensor(ids, device=device)
    log_p = a - np.log(np.exp(a).sum(-1, keepdims=True))
    p = 1 / (1 + np.exp(-b))
    pairs = [
        (rf.losses.mse_loss(x, t), ((a - b) ** 2).mean()),
        (rf.losses.l1_loss(x, t, "sum"), abs(a - b).sum()),
        (rf.losses.cross_entropy(x, targets), -log_p[range(5), ids].mean()),
        (rf.losses.cross_entropy(x, targets, reduction="none"), -log_p[range(5), ids]),
        (rf.losses.cross_entropy(x, targets, ignore_index=1), -log_p[[0, 1, 4], [0, 2, 0]].mean()),
        (rf.losses.nll_loss(x.log_softmax(), targets, reduction="sum"), -log_p[range(5), ids].sum()),
        (
            nn.CrossEntropyLoss(label_smoothing=0.1)(x, targets),
            -(0.9 * log_p[range(5), ids] + 0.1 * log_p.mean(1)).mean(),
        ),
        (
            rf.losses.binary_cross_entropy_with_logits(x, t.sigmoid()),
            (p * np.log1p(np.exp(-a)) + (1 - p) * np.log1p(np.exp(a))).mean(),
        ),
        (rf.losses.huber_loss(x, t), np.where(abs(a - b) < 1, (a - b) ** 2 / 2, abs(a - b) - 0.5).mean()),
    ]
    for got, expected in pairs:
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)
    with pytest.raises(ValueError, match="reduction"):
        rf.losses.mse_loss(x, t, "average")
    with pytest.raises(TypeError):
        rf.losses.cross_entropy(x, rf.ones(5, device=device))


def quadratic(device):
    start = np.float32([[1.0, -2.0], [3.0, 0.5]])
    return rf.tensor(start, device=device, requires_grad=True), start.astype(np.float64)


def test_optimizers_follow_their_formulas(device):
    def run(make, update):
        w, expected = quadratic(device)
        optimizer = make([w])
        memory = {}
        for step in range(1, 6):
            optimizer.zero_grad()
            (w**2).sum().backward()
            optimizer.step()
            expected = update(expected, 2 * expected, step, memory)
        np.testing.assert_allclose(w.numpy(), expected, atol=1e-5)

    def sgd(w, g, step, memory):
        memory["v"] = g if step == 1 else 0.9 * memory["v"] + g
        return w - 0.1 * memory["v"]

    def adamw(w, g, step, memory):
        memory["m"] = 0.9 * memory.get("m", 0) + 0.1 * g
        memory["v"] = 0.99 * memory.get("v", 0) + 0.01 * g * g
        m, v = memory["m"] / (1 - 0.9**step), memory["v"] / (1 - 0.99**step)
        return w * (1 - 0.1 * 0.01) - 0.1 * m / (np.sqrt(v) + 1e-8)

    run(lambda p: optim.SGD(p, 0.1, momentum=0.9), sgd)
    run(lambda p: optim.SGD(p, 0.1), lambda w, g, *_: w - 0.1 * g)
    run(lambda p: optim.AdamW(p, 0.1, betas=(0.9, 0.99)), adamw)
    run(lambda p: optim.SGD(p, 0.1, max_norm=0.5), lambda w, g, *_: w - 0.1 * g * min(1, 0.5 / np.linalg.norm(g)))


def test_every_optimizer_lowers_the_loss(device):
    makers = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Lion, optim.Muon]
    for make in makers:
        w, _ = quadratic(device)
        optimizer = make([w], lr=0.05)
        losses = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = (w**2).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.9 * losses[0], make
        assert optimizer.grad_norm() > 0


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Lion, optim.Muon])
def test_a_restored_optimizer_goes_on_to_the_bit(device, make):
    def begin():
        w, v = rf.ones(2, 3, device=device, requires_grad=True), rf.full((1, 3), 2.0, device=device, requires_grad=True)
        # The order of groups in memory is not that of the parameters.
        groups = [{"params": [w], "lr": 0.02}, {"params": [v]}]
        optimizer = make(groups, lr=0.05, **({"momentum": 0.9} if make is optim.SGD else {}))
        return [w, v], optimizer, optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def step(parameters, optimizer, scheduler):
        optimizer.zero_grad()
        (parameters[0] ** 3 * parameters[1]).sum().backward()
        optimizer.step()
        scheduler.step()

    first = begin()
    for _ in range(3):
        step(*first)
    saved = pickle.loads(pickle.dumps([[p.numpy() for p in first[0]], *(its.state_dict() for its in first[1:])]))
    parameters, optimizer, scheduler = second = begin()
    step(*second)
    for parameter, values in zip(parameters, saved[0]):
        parameter.data = rf.tensor(values, device=device)
    optimizer.load_state_dict(saved[1])
    scheduler.load_state_dict(saved[2])
    for _ in range(3):
        step(*first)
        step(*second)
    assert [p.tolist() for p in parameters] == [p.tolist() for p in first[0]] and optimizer.lr == first[1].lr


def test_the_state_of_another_optimizer_is_refused():
    def of(make, *shape):
        return make([rf.ones(*shape, requires_grad=True)])

    adam = of(optim.Adam, 2)
    state = adam.state_dict()
    assert state["state"][0]["step"] == 0 and set(state["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    for other, message in [(of(optim.RMSprop, 2), "no square_avg of parameter 0"), (of(optim.Adam, 3), "is \\(2\\)")]:
        with pytest.raises(ValueError, match=message):
            other.load_state_dict(state)
    for wrong in [{}, {"lr": 1.0, "state": {}}, {**state, "more": 1}]:
        with pytest.raises(ValueError, match="the state of an optimizer has"):
            adam.load_state_dict(wrong)


def test_groups_have_rates_and_decays_of_their_own():
    a, b = rf.ones(2, requires_grad=True), rf.ones(2, requires_grad=True)
    optimizer = optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.01, "weight_decay": 1.0}], lr=0.1)
    (a.sum() + b.sum()).backward()
    optimizer.step()
    np.testing.assert_allclose([a.numpy()[0], b.numpy()[0]], [0.9, 1 - 0.01 * 2], atol=1e-6)
    with pytest.raises(ValueError, match="betas"):
        optim.SGD([{"params": [a], "betas": 1}])


def test_what_cannot_be_optimized_is_refused(gpu):
    w = rf.ones(2, requires_grad=True)
    for wrong in [[], [rf.ones(2)], [w * 2], [w, w]]:
        with pytest.raises(ValueError):
            optim.SGD(wrong)
    with pytest.raises(RuntimeError, match="one device"):
        optim.SGD([w, rf.ones(2, device=gpu, requires_grad=True)])
    with pytest.raises(ValueError, match="beta1"):
        optim.Adam([w], betas=(1.5, 0.9))
    with pytest.raises(ValueError):
        optim.Muon([w])
    # What the optimizer would no longer reach.
    optimizer = optim.SGD([w], 0.1)
    w.to_(gpu)
    with pytest.raises(RuntimeError, match="was moved"):
        optimizer.step()
    first = optim.SGD([w], 0.1)
    optim.SGD([w], 0.1)
    with pytest.raises(RuntimeError, match="another optimizer"):
        first.step()


def test_schedulers_are_pytorchs():
    def rates(make, steps=5):
        optimizer = optim.SGD([rf.ones(1, requires_grad=True)], lr=0.1)
        scheduler = make(optimizer)
        all_rates = []
        for _ in range(steps):
            all_rates.append(optimizer.lr)
            scheduler.step()
        return all_rates

    s = optim.lr_scheduler
    np.testing.assert_allclose(rates(lambda o: s.StepLR(o, 2)), [0.1, 0.1, 0.01, 0.01, 0.001])
    np.testing.assert_allclose(rates(lambda o: s.ExponentialLR(o, 0.5)), [0.1 * 0.5**i for i in range(5)])
    cosine = [0.1 * (1 + math.cos(math.pi * i / 4)) / 2 for i in range(5)]
    np.testing.assert_allclose(rates(lambda o: s.CosineAnnealingLR(o, 4)), cosine, atol=1e-12)
    np.testing.assert_allclose(rates(lambda o: s.LinearDecayLR(o, 4)), [0.1, 0.075, 0.05, 0.025, 0], atol=1e-12)
    np.testing.assert_allclose(rates(lambda o: s.LambdaLR(o, lambda i: 1 / (1 + i)))[1:3], [0.05, 0.1 / 3])
    one_cycle = rates(lambda o: s.OneCycleLR(o, 1.0, 5))
    assert math.isclose(one_cycle[0], 1 / 25) and max(one_cycle) <= 1.0 and one_cycle[-1] < 1e-4


def test_initial_values_have_their_spread():
    w = nn.Parameter(rf.zeros(200, 100))
    for make, std in [
        (nn.init.xavier_normal_, math.sqrt(2 / 300)),
        (nn.init.kaiming_normal_, math.sqrt(2 / 100)),
        (nn.init.xavier_uniform_, math.sqrt(2 / 300)),
        (nn.init.kaiming_uniform_, math.sqrt(2 / 100)),
    ]:
        make(w)
        assert abs(w.std().item() / std - 1) < 0.05 and w.is_leaf, make
    assert nn.init.constant_(w, 2.0).mean().item() == 2.0
    with pytest.raises(ValueError, match="fan_in and fan_out need"):
        nn.init.xavier_normal_(rf.zeros(3))
