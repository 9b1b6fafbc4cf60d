#!/usr/bin/env python3
"""Write small policy and reference models, and the preference losses and gradients that TRL computes with them, for the
tests to compare rustyflow with.

    pip install torch transformers safetensors trl
    python scripts/make_preference_goldens.py --out tests/goldens/preference

Per family (`gpt2`, `llama`) two model folders with `config.json` and `model.safetensors` as `save_pretrained` writes
them: the policy in `<family>`, the reference model in `<family>-reference`. The policy's folder also contains

golden.json
    `pairs` (token ids of `prompt`, `chosen`, `rejected`) and `examples` (`prompt`, `completion`, `label`) for KTO, each
    list one batch; `cases`: settings and TRL's logged metrics per loss; `float32_error`.
golden.safetensors
    Per case: `<case>/loss` (1), `<case>/grad_norm` (1) over all parameters, `<case>/grad.<name>` for some parameters
    (all of them for `dpo`), `<case>/logps.chosen` and `.rejected` (pairs) or `<case>/logps` and `kl_logps` (examples),
    and `ref_logps` and `ref_kl_logps` likewise for losses with a reference model. Log-probabilities are sums over the
    completion's tokens, for ORPO and SimPO means. Names of parameters are those of transformers.

Cases
    dpo               DPOTrainer, loss_type sigmoid
    dpo_conservative  label smoothing of the DPO code (cDPO). TRL's sigmoid loss ignores label_smoothing; its aot loss
                      on a batch of one pair is the smoothed sigmoid, so this is the mean over the pairs of that loss
    dpo_robust        loss_type robust, TRL's use of label_smoothing in DPO
    dpo_sft           loss_type [sigmoid, sft] with loss_weights; the sft term is the mean over all chosen tokens
    ipo               loss_type ipo; log-ratios are divided by the number of completion tokens
    orpo              ORPOTrainer as it is: its NLL covers the chosen sequences with their prompts
    orpo_completion   TRL's odds ratio loss, and the NLL over the completion tokens alone, as in CPOTrainer
    simpo             CPOTrainer, loss_type simpo, cpo_alpha 0
    kto               KTOTrainer; KL example i is prompt i with completion (i + 1) mod n
    kto_rotated       the same with TRL's own KL examples: prompt i with completion (i - 1) mod n. The KL estimate is
                      negative, so it is clamped to 0

TRL computes in float32, on the CPU and without dropout. `float32_error` is its distance from the same formulas in
float64 on unpadded sequences, as max|got - want| / max|want|, the worst tensor of each group. The gradient of the key
third of every `c_attn.bias` is rounding noise: see `scripts/make_goldens.py`.
"""

import argparse
import json
import logging
import os
import tempfile
import warnings
from pathlib import Path

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import datasets
import tokenizers
import torch
import torch.nn.functional as F
import transformers
import trl
from safetensors.torch import save_file
from torch import Tensor
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from make_goldens import Draw, rounded, scaled_error, versions
from make_model_goldens import load, random_weight

VOCAB, CONTEXT, EOS = 61, 64, 60
# Lengths of prompt, chosen and rejected completion; of prompt and completion, with the label.
PAIRS = [(4, 7, 5), (1, 3, 9), (9, 12, 2), (6, 1, 4), (3, 10, 10)]
EXAMPLES = [(5, 6, True), (2, 9, False), (8, 1, True), (3, 4, True), (7, 11, False)]

SHARED = {"vocab_size": VOCAB, "attn_implementation": "eager", "use_cache": False, "bos_token_id": None,
          "eos_token_id": None, "pad_token_id": None}
CONFIGS = {
    "gpt2": transformers.GPT2Config(**SHARED, n_positions=CONTEXT, n_embd=16, n_layer=2, n_head=4, resid_pdrop=0.0,
                                    embd_pdrop=0.0, attn_pdrop=0.0),
    "llama": transformers.LlamaConfig(**SHARED, max_position_embeddings=CONTEXT, hidden_size=16, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, intermediate_size=24,
                                      tie_word_embeddings=False),
}
# The gradients of every case; `dpo` has those of all parameters.
GRADIENTS = {
    "gpt2": ["transformer.wte.weight", "transformer.h.0.attn.c_proj.weight", "transformer.ln_f.weight"],
    "llama": ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"],
}

CASES = {
    "dpo": {"loss_type": ["sigmoid"], "beta": 0.1},
    "dpo_conservative": {"loss_type": ["aot"], "beta": 0.1, "label_smoothing": 0.1},
    "dpo_robust": {"loss_type": ["robust"], "beta": 0.1, "label_smoothing": 0.1},
    "dpo_sft": {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5], "beta": 0.1},
    "ipo": {"loss_type": ["ipo"], "beta": 0.1},
    "orpo": {"beta": 0.1},
    "orpo_completion": {"beta": 0.1},
    "simpo": {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 1.0, "cpo_alpha": 0.0},
    "kto": {"loss_type": "kto", "beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.5},
    "kto_rotated": {"loss_type": "kto", "beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.5},
}
SHIFTS = {"kto": 1, "kto_rotated": -1}
METRICS = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen",
           "logps/rejected", "nll_loss", "log_odds_ratio", "log_odds_chosen", "kl"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the golden files of the preference losses.")
    parser.add_argument("--out", type=Path, default=Path("tests/goldens/preference"), help="folder to write to")
    args = parser.parse_args()
    torch.set_num_threads(1)  # one order of summation, whatever the machine
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore", FutureWarning)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    for family in CONFIGS:
        write(args.out, family)


# ---------------------------------------------------------------------------------------------------------
# Models and data
# ---------------------------------------------------------------------------------------------------------


def write(out: Path, family: str) -> None:
    """Draws until accuracies are mixed and the KL estimate is positive in one KTO case and clamped in the other."""
    attempts = (attempt(family, Draw(f"preference {family} {i}")) for i in range(200))
    policy, reference, pairs, examples, want = next(a for a in attempts if suitable(a[-1]))
    for model, folder in [(policy, out / family), (reference, out / f"{family}-reference")]:
        model.float().save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)

    tensors, cases, errors = {}, {}, {}
    for name, settings in CASES.items():
        got, metrics = run(out, family, name, pairs, examples)
        for key, tensor in got.items():
            group = key.split(".")[0]
            errors[group] = max(scaled_error(tensor, want[name][key]), errors.get(group, 0.0))
            if not key.startswith("grad.") or name == "dpo" or key.removeprefix("grad.") in GRADIENTS[family]:
                tensors[f"{name}/{key}"] = tensor
        cases[name] = {"settings": settings, "metrics": metrics}
    save_file(tensors, out / family / "golden.safetensors")
    write_json(out / family / "golden.json", {
        "versions": versions() | {"trl": trl.__version__}, "pairs": pairs, "examples": examples, "cases": cases,
        "float32_error": rounded(errors)})
    print(out / family, rounded(errors))


def attempt(family: str, draw: Draw) -> tuple:
    """Policy and reference model, pairs, KTO examples, and what each case computes in float64."""
    models = []
    for _ in range(2):
        model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family])
        load(model, {name: random_weight(name, p, draw) for name, p in model.named_parameters()})
        models.append(model.double())

    def ids(length: int, ends: bool = False) -> list[int]:
        tokens = draw.integers(EOS, length).tolist()
        return tokens[:-1] + [EOS] if ends else tokens

    pairs = [{"prompt": ids(prompt), "chosen": ids(chosen, i % 2 == 0), "rejected": ids(rejected, i % 3 == 0)}
             for i, (prompt, chosen, rejected) in enumerate(PAIRS)]
    examples = [{"prompt": ids(prompt), "completion": ids(completion, i % 2 == 0), "label": label}
                for i, (prompt, completion, label) in enumerate(EXAMPLES)]
    return *models, pairs, examples, {name: exact(*models, name, pairs, examples) for name in CASES}


def suitable(want: dict[str, dict[str, Tensor]]) -> bool:
    def kl(name: str) -> float:
        return (want[name]["kl_logps"] - want[name]["ref_kl_logps"]).mean().item()

    def margins(name: str, prefix: str) -> Tensor:
        return want[name][f"{prefix}logps.chosen"] - want[name][f"{prefix}logps.rejected"]

    accuracies = [margins("dpo", "") > margins("dpo", "ref_"), margins("simpo", "") > 0]
    mixed = all(correct.any() and not correct.all() for correct in accuracies)
    return mixed and kl("kto") > 0.5 and kl("kto_rotated") < -0.5


def write_json(path: Path, description: dict) -> None:
    """One line per pair, example and case."""
    parts = []
    for key, value in description.items():
        if key in ("pairs", "examples"):
            text = "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"
        elif key == "cases":
            text = "{\n    " + ",\n    ".join(f"{json.dumps(n)}: {json.dumps(c)}" for n, c in value.items()) + "\n  }"
        else:
            text = json.dumps(value)
        parts.append(f"  {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


# ---------------------------------------------------------------------------------------------------------
# TRL
# ---------------------------------------------------------------------------------------------------------


def run(out: Path, family: str, name: str, pairs: list[dict], examples: list[dict]) -> tuple[dict[str, Tensor], dict]:
    """Loss, log-probabilities, gradients and metrics of one case."""
    policy, reference = (transformers.AutoModelForCausalLM.from_pretrained(out / folder, attn_implementation="eager")
                         for folder in (family, f"{family}-reference"))
    with tempfile.TemporaryDirectory() as scratch:
        arguments = dict(output_dir=scratch, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
                         per_device_train_batch_size=len(PAIRS), max_length=CONTEXT)
        case = {"dpo": run_dpo, "ipo": run_dpo, "kto": run_kto, "orpo": run_orpo, "simpo": run_simpo}
        tensors, metrics = case[name.split("_")[0]](policy, reference, name, arguments, pairs, examples)
    gradients = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    assert len(gradients) == len(list(policy.parameters()))
    norm = torch.stack([grad.double().square().sum() for grad in gradients.values()]).sum().sqrt().float()
    tensors |= {"grad_norm": norm.reshape(1)} | {f"grad.{name}": grad for name, grad in gradients.items()}
    metrics = {key: metrics[key] for key in METRICS if key in metrics}
    return {key: tensor.detach().clone().contiguous() for key, tensor in tensors.items()}, metrics


def trainer_of(trainer: type, arguments: object, policy: torch.nn.Module, columns: dict, **options) -> object:
    """A trainer in training mode; its data set is a stand-in, since batches are passed to its methods."""
    words = {f"w{i}": i for i in range(VOCAB)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token=f"w{EOS}", pad_token="w0")
    data = datasets.Dataset.from_dict(columns)
    made = trainer(model=policy, args=arguments, train_dataset=data, processing_class=tokenizer, **options)
    policy.train()
    return made


PAIR_COLUMNS = {"prompt": ["w1"] * 2, "chosen": ["w2"] * 2, "rejected": ["w3"] * 2}
EXAMPLE_COLUMNS = {"prompt": ["w1"] * 2, "completion": ["w2"] * 2, "label": [True, False]}


def run_dpo(policy, reference, name, arguments, pairs, _) -> tuple[dict[str, Tensor], dict]:
    config = trl.DPOConfig(**arguments, **CASES[name])
    trainer = trainer_of(trl.DPOTrainer, config, policy, PAIR_COLUMNS, ref_model=reference)
    rows = [{f"{key}_ids": ids for key, ids in pair.items()} for pair in pairs]
    batches = [[row] for row in rows] if name == "dpo_conservative" else [rows]
    losses = []
    for batch in batches:
        loss = trainer.compute_loss(policy, trainer.data_collator(batch))
        (loss / len(batches)).backward()
        losses.append(loss.detach())
    tensors = {"loss": torch.stack(losses).mean().reshape(1)}
    batch = trainer.data_collator(rows)
    for prefix, model in [("", policy), ("ref_", trainer.ref_model)]:
        chosen, rejected = trainer.compute_ref_log_probs(model, batch)
        tensors |= {f"{prefix}logps.chosen": chosen, f"{prefix}logps.rejected": rejected}
    return tensors, {key: sum(values) / len(values) for key, values in trainer._metrics["train"].items()}


def run_kto(policy, reference, name, arguments, _, examples) -> tuple[dict[str, Tensor], dict]:
    config = trl.KTOConfig(**arguments, **CASES[name])
    trainer = trainer_of(trl.KTOTrainer, config, policy, EXAMPLE_COLUMNS, ref_model=reference)
    batch = trainer.data_collator([
        {"prompt_ids": example["prompt"], "completion_ids": example["completion"], "label": example["label"],
         "KL_completion_ids": examples[(i + SHIFTS[name]) % len(examples)]["completion"]}
        for i, example in enumerate(examples)])
    loss = trainer.compute_loss(policy, batch)
    loss.backward()
    tensors = {"loss": loss.reshape(1)}
    for prefix, model in [("", policy), ("ref_", trainer.ref_model)]:
        tensors[f"{prefix}logps"], tensors[f"{prefix}kl_logps"] = trainer.compute_ref_log_probs(model, batch)
    return tensors, {key: values[0] for key, values in trainer._metrics["train"].items() if values}


def rows_with_labels(pairs: list[dict]) -> list[dict]:
    """Pairs as `tokenize_row` of ORPOTrainer and CPOTrainer returns them."""
    rows = []
    for pair in pairs:
        prompt = pair["prompt"]
        row = {"prompt_input_ids": prompt, "prompt_attention_mask": [1] * len(prompt)}
        for side in ("chosen", "rejected"):
            ids = prompt + pair[side]
            row |= {f"{side}_input_ids": ids, f"{side}_attention_mask": [1] * len(ids),
                    f"{side}_labels": [-100] * len(prompt) + pair[side]}
        rows.append(row)
    return rows


def run_orpo(policy, _, name, arguments, pairs, __) -> tuple[dict[str, Tensor], dict]:
    trainer = trainer_of(ORPOTrainer, ORPOConfig(**arguments, **CASES[name]), policy, PAIR_COLUMNS)
    batch = trainer.data_collator(rows_with_labels(pairs))
    loss, metrics = trainer.get_batch_loss_metrics(policy, batch)
    chosen, rejected = trainer.concatenated_forward(policy, batch)[:2]
    if name == "orpo_completion":
        cpo = trainer_of(CPOTrainer, CPOConfig(**arguments), policy, PAIR_COLUMNS)
        nll = cpo.concatenated_forward(policy, batch)[4]
        loss = nll - trainer.odds_ratio_loss(chosen, rejected)[0].mean()
        metrics["nll_loss"] = nll.item()
    loss.backward()
    return {"loss": loss.reshape(1), "logps.chosen": chosen, "logps.rejected": rejected}, metrics


def run_simpo(policy, _, name, arguments, pairs, __) -> tuple[dict[str, Tensor], dict]:
    trainer = trainer_of(CPOTrainer, CPOConfig(**arguments, **CASES[name]), policy, PAIR_COLUMNS)
    batch = trainer.data_collator(rows_with_labels(pairs))
    loss, metrics = trainer.get_batch_loss_metrics(policy, batch)
    loss.backward()
    chosen, rejected = trainer.concatenated_forward(policy, batch)[:2]
    return {"loss": loss.reshape(1), "logps.chosen": chosen, "logps.rejected": rejected}, metrics


# ---------------------------------------------------------------------------------------------------------
# The same formulas in float64
# ---------------------------------------------------------------------------------------------------------


def token_logps(model: torch.nn.Module, prompt: list[int], completion: list[int], whole: bool = False) -> Tensor:
    """Log-probabilities of the completion's tokens; with `whole`, of all tokens but the first."""
    ids = torch.tensor([prompt + completion])
    logps = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    return logps if whole else logps[len(prompt) - 1:]


def exact(policy, reference, name: str, pairs: list[dict], examples: list[dict]) -> dict[str, Tensor]:
    policy.zero_grad()
    settings = CASES[name]
    if name in SHIFTS:
        loss, result = exact_kto(policy, reference, settings, SHIFTS[name], examples)
    else:
        loss, result = exact_pairs(policy, reference, name, settings, pairs)
    loss.backward()
    gradients = {f"grad.{key}": p.grad.clone() for key, p in policy.named_parameters()}
    norm = torch.stack([grad.square().sum() for grad in gradients.values()]).sum().sqrt()
    result |= {"loss": loss.reshape(1), "grad_norm": norm.reshape(1)} | gradients
    return {key: tensor.detach() for key, tensor in result.items()}


def exact_pairs(policy, reference, name: str, settings: dict, pairs: list[dict]) -> tuple[Tensor, dict[str, Tensor]]:
    def sums(model: torch.nn.Module, side: str) -> Tensor:
        return torch.stack([token_logps(model, pair["prompt"], pair[side]).sum() for pair in pairs])

    beta, smoothing = settings["beta"], settings.get("label_smoothing", 0.0)
    chosen, rejected = sums(policy, "chosen"), sums(policy, "rejected")
    lengths, rejected_lengths = (torch.tensor([len(pair[side]) for pair in pairs]) for side in ("chosen", "rejected"))
    if name.startswith(("orpo", "simpo")):
        chosen, rejected = chosen / lengths, rejected / rejected_lengths
        result = {"logps.chosen": chosen, "logps.rejected": rejected}
        if name == "simpo":
            return -F.logsigmoid(beta * (chosen - rejected) - settings["simpo_gamma"]).mean(), result
        log_odds = chosen - rejected - ((1 - chosen.exp()).log() - (1 - rejected.exp()).log())
        nll = -torch.cat([token_logps(policy, p["prompt"], p["chosen"], name == "orpo") for p in pairs]).mean()
        return nll - beta * F.logsigmoid(log_odds).mean(), result

    with torch.no_grad():
        ref_chosen, ref_rejected = sums(reference, "chosen"), sums(reference, "rejected")
    result = {"logps.chosen": chosen, "logps.rejected": rejected, "ref_logps.chosen": ref_chosen,
              "ref_logps.rejected": ref_rejected}
    margins = (chosen - ref_chosen) - (rejected - ref_rejected)
    agrees, disagrees = -F.logsigmoid(beta * margins), -F.logsigmoid(-beta * margins)
    if name == "dpo_conservative":
        losses = (1 - smoothing) * agrees + smoothing * disagrees
    elif name == "dpo_robust":
        losses = ((1 - smoothing) * agrees - smoothing * disagrees) / (1 - 2 * smoothing)
    elif name == "dpo_sft":
        losses = agrees - settings["loss_weights"][1] * chosen.sum() / lengths.sum()
    elif name == "ipo":
        margins = (chosen - ref_chosen) / lengths - (rejected - ref_rejected) / rejected_lengths
        losses = (margins - 1 / (2 * beta)).square()
    else:
        losses = agrees
    return losses.mean(), result


def exact_kto(policy, reference, settings: dict, shift: int, examples: list[dict]) -> tuple[Tensor, dict[str, Tensor]]:
    def sums(model: torch.nn.Module, shift: int) -> Tensor:
        return torch.stack([
            token_logps(model, example["prompt"], examples[(i + shift) % len(examples)]["completion"]).sum()
            for i, example in enumerate(examples)])

    logps = sums(policy, 0)
    with torch.no_grad():
        ref_logps, kl_logps, ref_kl_logps = sums(reference, 0), sums(policy, shift), sums(reference, shift)
    kl = (kl_logps - ref_kl_logps).mean().clamp(min=0)
    labels = torch.tensor([example["label"] for example in examples])
    signs = torch.where(labels, 1.0, -1.0).double()
    weights = torch.where(labels, settings["desirable_weight"], settings["undesirable_weight"]).double()
    losses = weights * (1 - torch.sigmoid(settings["beta"] * signs * (logps - ref_logps - kl)))
    return losses.mean(), {"logps": logps, "ref_logps": ref_logps, "kl_logps": kl_logps, "ref_kl_logps": ref_kl_logps}


if __name__ == "__main__":
    main()
