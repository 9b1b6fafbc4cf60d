#!/usr/bin/env python3
"""Write small adapters as PEFT saves them, and what their models compute with them, for the tests to compare rustyflow
with.

    pip install torch transformers safetensors peft
    python scripts/make_adapter_goldens.py --models tests/goldens/models --out tests/goldens/adapters [NAME ..]

One folder for each adapter, with `adapter_config.json` and `adapter_model.safetensors` as `save_pretrained` writes
them, which name the folder of their model as it is seen from there; and `golden.safetensors` with one batch (`ids`) and
its `logits`; with DoRA, also the `loss` of predicting each token and the gradients of the adapter (`grad.` and PEFT's
names). They are computed in float64 from values that are float32, so the whole tolerance belongs to the
implementation under test. `golden.json` says what PyTorch itself loses in float32.
"""

import argparse
import json
import os
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import save_file

from make_goldens import scaled_error, versions

B, T = 2, 13
GPT2 = {"vocab_size": 37, "n_positions": T, "n_embd": 20, "n_layer": 2, "n_head": 4, "use_cache": False,
        "bos_token_id": None, "eos_token_id": None, "attn_implementation": "eager"}
# Name: the model's folder, and what is adapted. A bare c_proj is that of attention and that of the MLP, and to PEFT a
# norm to be saved is every module whose name ends so.
ADAPTERS = {
    "gpt2": ("gpt2-base", dict(r=3, lora_alpha=5, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)),
    "llama": ("llama-gqa", dict(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"], use_rslora=True,
                                rank_pattern={"down_proj": 2}, alpha_pattern={"self_attn.v_proj": 9})),
    "qwen3": ("qwen3", dict(r=2, lora_alpha=8, target_modules="all-linear")),
    "gpt2-dora": ("gpt2-base", dict(r=3, lora_alpha=5, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True,
                                    use_dora=True)),
    "llama-dora": ("llama-gqa", dict(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"],
                                     use_dora=True, use_rslora=True)),
    "gpt2-saved": ("gpt2-base", dict(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True,
                                     modules_to_save=["wte", "lm_head", "ln_f"], ensure_weight_tying=True)),
    "qwen3-saved": ("qwen3-untied", dict(r=2, lora_alpha=8, target_modules=["v_proj"],
                                         modules_to_save=["lm_head", "norm", "o_proj", "up_proj"])),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("names", nargs="*", help="these alone; the model of the GPT-2 ones is there already")
    args = parser.parse_args()
    torch.manual_seed(1)
    if not args.names:
        write_gpt2(args.out / "gpt2-base")
    for name, (base, settings) in ADAPTERS.items():
        model_folder = (args.out if base == "gpt2-base" else args.models) / base
        if not args.names or name in args.names:
            write(args.out / name, model_folder, settings)


def write_gpt2(folder: Path) -> None:
    base = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    base.save_pretrained(folder)


def write(folder: Path, model_folder: Path, settings: dict) -> None:
    base = transformers.AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager")
    dropout = 0.0 if settings.get("use_dora") else 0.1
    config = peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=dropout, **settings)
    model = peft.get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_magnitude" in name:
                parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
            elif "lora_" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
            elif "modules_to_save" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.eval()
    model.save_pretrained(folder)
    its_config = folder / "adapter_config.json"
    saved = json.loads(its_config.read_text()) | {"base_model_name_or_path": os.path.relpath(model_folder, folder)}
    saved["target_modules"].sort()  # a set: its order changes from run to run
    its_config.write_text(json.dumps(saved, indent=2) + "\n")
    (folder / "README.md").unlink(missing_ok=True)
    ids = torch.randint(0, base.config.vocab_size, (B, T))
    in_f32 = model(ids).logits.detach()
    logits = model.double()(ids).logits.detach()
    tensors = {"ids": ids, "logits": logits.float()}
    if settings.get("use_dora"):
        loss = model(ids, labels=ids).loss
        loss.backward()
        tensors["loss"] = loss.detach().float().reshape(1)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                name = name.replace(".default", "").replace("lora_magnitude_vector.weight", "lora_magnitude_vector")
                tensors[f"grad.{name}"] = parameter.grad.float().contiguous()
    without = base.double().eval()
    with model.disable_adapter():
        distance = scaled_error(without(ids).logits.detach(), logits)
    save_file(tensors, folder / "golden.safetensors")
    note = {"versions": versions() | {"peft": peft.__version__}, "float32_error": scaled_error(in_f32, logits),
            "without_adapter": distance}
    (folder / "golden.json").write_text(json.dumps(note, indent=1) + "\n")
    print(folder, note)


if __name__ == "__main__":
    main()
