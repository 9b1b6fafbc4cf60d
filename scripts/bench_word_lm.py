"""Trains the word-level LSTM of pytorch/examples (word_language_model) in PyTorch, to compare speed and perplexity with
configs/wikitext-2-lstm.toml: the same sizes, text, order of batches and plain gradient descent. Its head has a bias.

    python scripts/bench_word_lm.py TRAIN.txt VALID.txt [--epochs 40] [--width 650] [--dropout 0.5] [--device cuda]

Prints for each epoch the milliseconds of a step, words per second, and the perplexity of the validation text.
"""

import argparse
import math
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("train")
parser.add_argument("valid")
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--width", type=int, default=650)
parser.add_argument("--dropout", type=float, default=0.5)
parser.add_argument("--steps", type=int, default=0, help="of an epoch; 0: all")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
args = parser.parse_args()
torch.manual_seed(1)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
BATCH, STEPS = 20, 35

ids = {}


def read(path):
    words = [w for line in open(path, encoding="utf-8") for w in [*line.split(), "<eos>"]]
    data = torch.tensor([ids.setdefault(w, len(ids)) for w in words], device=args.device)
    return data[: len(data) // BATCH * BATCH].view(BATCH, -1).t().contiguous()


train, valid = read(args.train), read(args.valid)


class WordModel(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.drop = nn.Dropout(args.dropout)
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, 2, dropout=args.dropout)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, x, state):
        y, state = self.rnn(self.drop(self.encoder(x)), state)
        return self.decoder(self.drop(y)).flatten(0, 1), tuple(s.detach() for s in state)


model = WordModel(len(ids), args.width).to(args.device)
loss_of = nn.CrossEntropyLoss()


def rows(data):
    for at in range(0, len(data) - 1, STEPS):
        n = min(STEPS, len(data) - 1 - at)
        yield data[at : at + n], data[at + 1 : at + 1 + n].flatten()


@torch.no_grad()
def perplexity():
    model.eval()
    state, total = None, 0.0
    for x, targets in rows(valid):
        logits, state = model(x, state)
        total += len(x) * loss_of(logits, targets).item()
    model.train()
    return math.exp(total / (len(valid) - 1))


parameters = sum(p.numel() for p in model.parameters())
print(f"{len(ids)} words, {parameters} parameters, {args.device}, {torch.get_num_threads()} threads")
rate, best = 20.0, math.inf
for epoch in range(args.epochs):
    state, done = None, 0
    start = time.perf_counter()
    for x, targets in rows(train):
        model.zero_grad()
        logits, state = model(x, state)
        loss_of(logits, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=-rate)
        done += 1
        if done == args.steps:
            break
    if args.device != "cpu":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    now = perplexity()
    step, speed = 1e3 * seconds / done, BATCH * STEPS * done / seconds
    perplexities = f"perplexity {now:.2f}  best {min(best, now):.2f}"
    print(f"epoch {epoch + 1:2}  {step:8.2f} ms/step  {speed:9.0f} words/s  {perplexities}", flush=True)
    best, rate = min(best, now), rate if now < best else rate / 4
