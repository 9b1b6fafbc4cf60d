#!/usr/bin/env python3
"""Checks that folders which transformers writes compute the same here, and that what is trained from them goes back.

    pip install torch transformers tokenizers safetensors
    cargo build --release && cargo build --release --example logits
    python3 scripts/check_folders.py [part of a name]

Makes a folder of every family in awkward shapes: odd vocabularies and widths, one to four heads of queries per head of
keys, tied and untied, in one file or in shards of 200 kB, stored as f32, f16 or bf16, with a head or as the base class,
names with and without their prefix, `tokenizer.json` (with and without a token that begins texts) or `vocab.json` and
`merges.txt`. Compares

- the logits of a text with those of transformers, computed in float32 from the same stored weights: the largest
  difference is at most 1e-4 of the largest logit;
- the loss that `rustyflow eval` prints, in windows side by side and with `--stride`, and how it answers multiple-choice
  questions (`--choices`): accuracy, that by likelihood per byte, and the likelihood of the right answers;
- 200 tokens that `rustyflow generate` writes at temperature 0;
- and, after some steps of `rustyflow train --init FOLDER`, the same of the checkpoint that this leaves.

Checkpoints of runs from scratch: `check_transformers.py`. Run by hand; exits with 1 if anything differs.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import numpy  # noqa: E402
import safetensors.torch  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from check_transformers import BINARY, SAMPLE, loss, rustyflow  # noqa: E402

LOGITS = pathlib.Path(os.environ.get("LOGITS", pathlib.Path(BINARY).parent / "examples/logits"))
NEW_TOKENS, CONTEXT, PROMPT = 200, 256, "One morning"


def gpt2(n_head, n_embd, **further):
    sizes = {"n_layer": 3, "n_head": n_head, "n_embd": n_embd, "n_positions": CONTEXT}
    return lambda vocab: transformers.GPT2Config(vocab_size=vocab, bos_token_id=None, eos_token_id=None, **sizes,
                                                 **further)


def llama(family, heads, kv_heads, width, **further):
    sizes = {"num_hidden_layers": 3, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
             "hidden_size": width, "intermediate_size": 2 * width + 2, "max_position_embeddings": CONTEXT}
    config = getattr(transformers, f"{family}Config")
    return lambda vocab: config(vocab_size=vocab, bos_token_id=None, eos_token_id=None, pad_token_id=None, **sizes,
                                **further)


LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
# Name: the config, the size of the vocabulary, and how the folder is written.
FOLDERS = {
    "gpt2, f32": (gpt2(6, 66), 157, {}),
    "gpt2, f16, shards": (gpt2(3, 87), 211, {"dtype": "float16", "shard": True}),
    "gpt2, bf16, shards, base class": (gpt2(4, 92), 131, {"dtype": "bfloat16", "shard": True, "base": True}),
    "gpt2, no prefix, vocab.json": (gpt2(5, 70), 149, {"strip": True, "vocab_json": True}),
    "gpt2, untied, masks": (gpt2(1, 54, tie_word_embeddings=False), 203, {"masks": True}),
    "gpt2, untied, bf16, vocab.json": (gpt2(2, 62, tie_word_embeddings=False), 177,
                                       {"dtype": "bfloat16", "vocab_json": True}),
    "llama 4:4, f32, shards": (llama("Llama", 4, 4, 72), 163, {"shard": True}),
    "llama 4:1, bf16, tied, <s>": (llama("Llama", 4, 1, 88, tie_word_embeddings=True), 139,
                                   {"dtype": "bfloat16", "bos": True}),
    "llama 6:3, f16, stretched, shards": (llama("Llama", 6, 3, 84, rope_parameters=LLAMA3), 251,
                                          {"dtype": "float16", "shard": True}),
    "llama 3:1, wide heads, linear": (
        llama("Llama", 3, 1, 51, head_dim=26, rms_norm_eps=1e-5,
              rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}), 187, {}),
    "llama 4:2, base class, tied, shards": (llama("Llama", 4, 2, 72, tie_word_embeddings=True), 173,
                                            {"base": True, "shard": True}),
    "mistral 8:2, window, bf16": (llama("Mistral", 8, 2, 80, sliding_window=37), 191, {"dtype": "bfloat16"}),
    "mistral 4:4, no window": (llama("Mistral", 4, 4, 56, sliding_window=None), 133, {}),
    "qwen2 6:2, tied, f16, shards": (llama("Qwen2", 6, 2, 96, tie_word_embeddings=True), 223,
                                     {"dtype": "float16", "shard": True}),
    "qwen2 4:4, untied, f32": (llama("Qwen2", 4, 4, 88), 167, {}),
    "qwen2 4:1, window, bf16": (llama("Qwen2", 4, 1, 72, use_sliding_window=True, sliding_window=21,
                                      max_window_layers=0), 151, {"dtype": "bfloat16"}),
    "qwen2 2:1, switch beyond the layers": (llama("Qwen2", 2, 1, 44, use_sliding_window=True, sliding_window=21,
                                                  max_window_layers=3), 145, {}),
    "qwen3 4:2, tied, bf16, shards": (llama("Qwen3", 4, 2, 90, head_dim=22, tie_word_embeddings=True), 199,
                                      {"dtype": "bfloat16", "shard": True}),
    "qwen3 4:1, untied, f32, shards": (llama("Qwen3", 4, 1, 62, head_dim=34), 181, {"shard": True}),
    "qwen3 3:3, base class, f16": (llama("Qwen3", 3, 3, 63, head_dim=20, tie_word_embeddings=True), 241,
                                   {"dtype": "float16", "base": True}),
}


def tokenizer_of(folder, size, vocab_json=False, bos=False):
    """Byte-level BPE of exactly so many tokens, all of them text: what they decode to can be compared. With `bos` the
    last of them is put before every text, as Llama's tokenizers do."""
    pipeline = tokenizers.Tokenizer(tokenizers.models.BPE())
    pipeline.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size - bos, show_progress=False, initial_alphabet=[])
    pipeline.train_from_iterator([SAMPLE.read_text()], trainer)
    if bos:
        pipeline.add_special_tokens(["<s>"])
        pipeline.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", size - 1)])
    assert pipeline.get_vocab_size() == size
    if vocab_json:
        pipeline.model.save(str(folder))
        return transformers.GPT2Tokenizer.from_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=pipeline)
    tokenizer.save_pretrained(folder)
    return tokenizer


@torch.no_grad()
def make(folder, config, dtype="float32", shard=False, base=False, strip=False, masks=False):
    """Writes a model whose text is no loop of few tokens: its weights are much wider than models start."""
    torch.manual_seed(sum(map(ord, folder.name)))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            parameter.normal_(std=2.5 / parameter.shape[-1] ** 0.5)
        else:
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model = model.to(getattr(torch, dtype))
    saved = model.base_model if base else model
    saved.save_pretrained(folder, max_shard_size="200KB" if shard else "5GB")
    assert (folder / "model.safetensors.index.json").exists() == shard
    path = folder / "model.safetensors"
    if strip or masks:
        tensors = safetensors.torch.load_file(path)
        if strip:
            tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        if masks:
            mask = torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.uint8))[None, None]
            tensors |= {f"transformer.h.{i}.attn.bias": mask.clone() for i in range(config.n_layer)}
            tensors |= {f"transformer.h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(config.n_layer)}
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


@torch.no_grad()
def compare(name, work, folder):
    """What rustyflow computes of a folder beside what transformers does."""
    model, told = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                                    output_loading_info=True)
    tokenizer = (transformers.AutoTokenizer if (folder / "tokenizer.json").exists()
                 else transformers.GPT2Tokenizer).from_pretrained(folder)
    text = SAMPLE.read_text()[-2500:]
    (work / "text.txt").write_text(text)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    theirs = model(torch.tensor([ids[:CONTEXT]])).logits[0].numpy()
    done = subprocess.run([LOGITS, folder], input=" ".join(map(str, ids[:CONTEXT])).encode(), check=True,
                          capture_output=True)
    ours = numpy.frombuffer(done.stdout, dtype="<f4").reshape(CONTEXT, -1)
    error = abs(ours - theirs).max() / abs(theirs).max() if ours.shape == theirs.shape else numpy.inf
    losses = rustyflow(work, "eval", "--model", folder, "--text", "text.txt")["loss"], loss(model, ids, CONTEXT)
    strided = (rustyflow(work, "eval", "--model", folder, "--text", "text.txt", "--stride", "96")["loss"],
               strided_loss(model, ids, CONTEXT, 96))
    questions = list(questions_of(SAMPLE.read_text()))
    (work / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question, _ in questions))
    told_here = rustyflow(work, "eval", "--model", folder, "--choices", "questions.jsonl")
    told_there = answers(model, tokenizer, questions)
    start = tokenizer(PROMPT, return_tensors="pt")
    written = model.generate(**start, max_new_tokens=NEW_TOKENS, do_sample=False, top_k=None, top_p=None,
                             temperature=None, pad_token_id=0)[0]
    # `generate` prints no special tokens, within the text neither.
    there = tokenizer.decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    here = rustyflow(work, "generate", "--model", folder, "-p", PROMPT, "-n", str(NEW_TOKENS), "-t", "0")
    return report(name, {
        "no weight missing": not told["missing_keys"],
        f"logits off by {error:.1e}": error <= 1e-4,
        f"loss {losses[0]:.6f} and {losses[1]:.6f}": abs(losses[0] - losses[1]) < 1e-5 * losses[1],
        f"loss with a stride {strided[0]:.6f} and {strided[1]:.6f}": abs(strided[0] - strided[1]) < 1e-5 * strided[1],
        f"answers {told_here['correct']} and {told_here['correct_norm']} per byte of {len(questions)}, there "
        f"{told_there[0]} and {told_there[1]}, loss {told_here['answer_loss']:.6f} and {told_there[2]:.6f}":
            (told_here["correct"], told_here["correct_norm"]) == told_there[:2]
            and abs(told_here["answer_loss"] - told_there[2]) < 1e-5 * told_there[2],
        f"the same {here['new_tokens']} tokens, {len(set(written.tolist()))} different ones": there == here["text"],
    })


def strided_loss(model, ids, context, stride):
    """The mean over all tokens but the first, each with at least `context - stride` before it, as transformers' guide
    to perplexity has it; a window has one more target than there, that after its last token."""
    total, counted = 0.0, 0
    for start in range(0, len(ids), stride):
        end = min(start + context, len(ids) - 1)
        targets = torch.tensor([ids[start + 1:end + 1]])
        targets[:, :counted - start] = -100
        logits = model(torch.tensor([ids[start:end]])).logits[0]
        total += torch.nn.functional.cross_entropy(logits.double(), targets[0], reduction="sum").item()
        counted = end
        if end == len(ids) - 1:
            return total / (len(ids) - 1)


def questions_of(text, count=40):
    """How sentences go on, beside the ends of others; the right one is named in each of the three ways."""
    sentences = [s.split() for s in text.replace("\n", " ").split(".") if len(s.split()) >= 6][:count]
    ends = [" ".join(s[len(s) // 2:]) for s in sentences]
    for i, words in enumerate(sentences):
        choices = [ends[(i + k * 7) % len(ends)] for k in range(4)]
        place = i * 5 % 4
        choices[0], choices[place] = choices[place], choices[0]
        answer = [place, "ABCD"[place], choices[place]][i % 3] if choices.count(choices[place]) == 1 else place
        yield {"question": " ".join(words[:len(words) // 2]), "choices": choices, "answer": answer}, place


def answers(model, tokenizer, questions):
    """Right by likelihood, right by that per byte, and the mean loss of the right answers: lm-evaluation-harness."""
    right, right_norm, total = 0, 0, 0.0
    for question, place in questions:
        start = len(tokenizer(question["question"])["input_ids"])
        sums = []
        for choice in question["choices"]:
            ids = torch.tensor([tokenizer(question["question"] + " " + choice)["input_ids"]])
            logs = model(ids[:, :-1]).logits[0].double().log_softmax(-1)
            sums.append(logs.gather(1, ids[0, 1:, None])[start - 1:].sum().item())
        per_byte = [log / len(choice.encode()) for log, choice in zip(sums, question["choices"])]
        right += int(numpy.argmax(sums) == place)
        right_norm += int(numpy.argmax(per_byte) == place)
        total -= sums[place]
    return right, right_norm, total / len(questions)


def report(name, checks):
    for what, good in checks.items():
        print(f"{name:46} {'ok    ' if good else 'FAILED'} {what}", flush=True)
    return all(checks.values())


def check(work, name, config, size, further):
    folder = work / name.replace(" ", "-").replace(",", "")
    folder.mkdir()
    further = dict(further)
    tokenizer = tokenizer_of(folder, size, further.pop("vocab_json", False), further.pop("bos", False))
    make(folder, config(len(tokenizer)), **further)
    good = compare(name, work, folder)
    run = folder.name + "-run"
    settings = [f"run.name={run}", "train.max_steps=8", "train.learning_rate=0.001", "train.batch_size=2",
                "model.block_size=256"]
    command = [BINARY, "train", "--quiet", "--device", "cpu", "--init", folder, "--corpus", SAMPLE,
               *(f"--set={setting}" for setting in settings)]
    subprocess.run(command, cwd=work, check=True, stdout=subprocess.DEVNULL)
    return compare(f"{name}, trained on", work, work / "runs" / run / "checkpoints/step-000008") and good


def main():
    part = "".join(sys.argv[1:])
    with tempfile.TemporaryDirectory() as work:
        good = [check(pathlib.Path(work), name, *row) for name, row in FOLDERS.items() if part in name]
    print(f"{sum(good)} of {len(good)} folders agree")
    sys.exit(not good or not all(good))


if __name__ == "__main__":
    main()
