#!/usr/bin/env python3
"""Compare conversations in rustyflow with transformers: what is learnt of them, and the loss over it.

    pip install torch transformers safetensors
    python scripts/check_chat.py --rustyflow target/release/rustyflow

Makes small models of three families with a tokenizer and a chat template each, of which one marks what the assistant
says by {% generation %}, and two do not; and conversations of one to four turns. Every conversation is written by
apply_chat_template, tokenized as one text and computed alone, with all labels masked but those of the assistant's
tokens: those of return_assistant_tokens_mask, or without marks those with a character that the answer adds to the
text. `rustyflow eval` packs them into rows.
"""

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path

import tokenizers
import torch
import transformers

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}"
    "{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# As Llama 3's: blocks on lines of their own, trimmed content, a beginning of the text.
PLAIN = """{{- bos_token }}
{%- for m in messages %}
    {%- if m.role not in ['user', 'assistant', 'system'] %}
        {{- raise_exception('unknown role ' + m.role) }}
    {%- endif %}
    {{- '<|im_start|>' + m['role'] + '\\n\\n' + m['content'].strip() + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n\\n' }}
{%- endif %}
"""
# Without special tokens: a word of the answer and the space before it are one token.
LINES = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
WORDS = "the a cat dog sat ran on under mat tree and then it said: hello, world! 42 why? because.".split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rustyflow", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(1)
    random.seed(1)
    sizes = dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=48,
                 max_position_embeddings=128, bos_token_id=0, eos_token_id=2)
    cases = {
        "qwen3, marked": (transformers.Qwen3Config(**sizes, num_key_value_heads=2, head_dim=8), CHATML),
        "llama, tokens across the beginning of answers": (
            transformers.LlamaConfig(**sizes, num_key_value_heads=2), LINES),
        "llama, unmarked": (transformers.LlamaConfig(**sizes, num_key_value_heads=1), PLAIN),
        "gpt2, unmarked": (transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=128, bos_token_id=0,
                                                   eos_token_id=2), PLAIN),
    }
    for name, (config, template) in cases.items():
        conversations = [conversation() for _ in range(40)]
        tokenizer = make_tokenizer(conversations, template)
        config.vocab_size = len(tokenizer)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        check(name, model, tokenizer, conversations, args.rustyflow.resolve())


def check(name: str, model, tokenizer, conversations: list, rustyflow: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        compare(name, model.eval(), tokenizer, conversations, Path(folder), rustyflow)


def compare(name: str, model, tokenizer, conversations: list, folder: Path, rustyflow: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.double()
    total, count = 0.0, 0
    for messages in conversations:
        ids, mask = labelled(tokenizer, messages)
        labels = [token if counts else -100 for token, counts in zip(ids, mask)]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1]
        targets = torch.tensor(labels[1:])
        loss = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
        total, count = total + loss.item(), count + int((targets != -100).sum())
    text = folder / "chat.jsonl"
    text.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations))
    command = [rustyflow, "eval", "--model", folder, "--text", text, "--device", "cpu", "--json"]
    got = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    error = abs(got["loss"] - total / count) / (total / count)
    print(f"{name}: {count} tokens of answers, loss {total / count:.6f}; rustyflow {got['tokens']}, "
          f"{got['loss']:.6f}, relative difference {error:.1e}")
    assert got["tokens"] == count and error < 1e-5


def labelled(tokenizer, messages: list[dict]) -> tuple[list[int], list[int]]:
    if "generation %}" in tokenizer.chat_template:
        both = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        return both["input_ids"], both["assistant_masks"]
    write = lambda messages, answer: tokenizer.apply_chat_template(messages, tokenize=False,
                                                                   add_generation_prompt=answer)
    answers = [(len(write(messages[:number], True)), len(write(messages[:number + 1], False)))
               for number, message in enumerate(messages) if message["role"] == "assistant"]
    whole = tokenizer(write(messages, False), add_special_tokens=False, return_offsets_mapping=True)
    mask = [int(any(start < ends and begins < end for begins, ends in answers))
            for start, end in whole["offset_mapping"]]
    return whole["input_ids"], mask


def conversation() -> list[dict]:
    say = lambda: " ".join(random.choice(WORDS) for _ in range(random.randint(1, 6)))
    messages = [{"role": "system", "content": say()}] if random.random() < 0.3 else []
    for _ in range(random.randint(1, 3)):
        messages += [{"role": "user", "content": say()}, {"role": "assistant", "content": say()}]
    if random.random() < 0.3:
        messages.append({"role": "user", "content": say()})
    return messages


def make_tokenizer(conversations: list, template: str) -> transformers.PreTrainedTokenizerFast:
    pipeline = tokenizers.Tokenizer(tokenizers.models.BPE())
    pipeline.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|begin|>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=330, special_tokens=special, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pipeline.train_from_iterator([m["content"] for messages in conversations for m in messages], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=pipeline, bos_token="<|begin|>",
                                                     eos_token="<|im_end|>")
    tokenizer.chat_template = template
    return tokenizer


if __name__ == "__main__":
    main()
