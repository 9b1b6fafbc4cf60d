//! Losses of preferences and their gradients agree with TRL's, however the answers are packed and divided. The golden
//! files are those of `scripts/make_preference_goldens.py`, which also says where TRL computes something else.

#[path = "../../../crates/tensor/tests/common/golden.rs"]
mod golden;

use crate::config::{Config, Layers};
use crate::data::{Answer, Batch, IGNORE_INDEX, Label, Position};
use crate::models::{LanguageModel, hf};
use crate::optim::ParameterArena;
use crate::train::evaluation::preference::{Counts, Preference, Totals};
use crate::train::setup::init::first_model;
use crate::train::setup::reference;
use crate::train::step::micro_batch::Forward;
use crate::train::step::ranks::{Sequences, Share};
use crate::{DType, Device, Tensor};
use golden::{Comparison, Golden, folder};
use serde_json::Value;
use std::collections::HashMap;

/// Tokens of a row.
const T: usize = 64;

/// The cases of the golden files, and the configuration of each.
const CASES: &[(&str, &str)] = &[
    ("dpo", "train.objective=dpo"),
    ("dpo_conservative", "train.objective=dpo preference.label_smoothing=0.1"),
    ("dpo_sft", "train.objective=dpo preference.sft_weight=0.5"),
    ("ipo", "train.objective=ipo"),
    ("orpo_completion", "train.objective=orpo"),
    ("simpo", "train.objective=simpo"),
    ("kto", "train.objective=kto preference.undesirable_weight=1.5"),
    ("kto_rotated", "train.objective=kto preference.undesirable_weight=1.5"),
];

fn config(settings: &str) -> Config {
    let mut layers = Layers::new().set("model.init=golden").unwrap().set("model.block_size=64").unwrap();
    layers = layers.set("train.batch_size=5").unwrap();
    for setting in settings.split_whitespace() {
        layers = layers.set(setting).unwrap();
    }
    layers.build().unwrap().config
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A prompt, an answer and its label.
type Document = (Vec<u32>, Vec<u32>, Label);

/// What is compared: pairs of answers, or each answer with a mismatched one.
fn pairs(golden: &Golden, case: &str) -> Vec<[Document; 2]> {
    if !case.starts_with("kto") {
        let pair = |pair: &Value| {
            let prompt = ids(&pair["prompt"]);
            [("chosen", Label::Chosen), ("rejected", Label::Rejected)]
                .map(|(key, label)| (prompt.clone(), ids(&pair[key]), label))
        };
        return golden.description["pairs"].as_array().unwrap().iter().map(pair).collect();
    }
    let examples = golden.description["examples"].as_array().unwrap();
    // TRL pairs a prompt with the answer before it; the other case is the other way round.
    let others = if case == "kto_rotated" { examples.len() - 1 } else { 1 };
    let each = examples.iter().enumerate().map(|(i, example)| {
        let label = if example["label"].as_bool().unwrap() { Label::Desirable } else { Label::Undesirable };
        let (prompt, other) = (ids(&example["prompt"]), &examples[(i + others) % examples.len()]);
        let own = (prompt.clone(), ids(&example["completion"]), label);
        [own, (prompt, ids(&other["completion"]), Label::Mismatched)]
    });
    each.collect()
}

/// A batch with so many pairs in each row.
fn batch(pairs: &[[Document; 2]], per_row: usize) -> Batch {
    let rows = pairs.len().div_ceil(per_row);
    let (mut all, mut targets, mut starts) = (vec![0; rows * T], vec![IGNORE_INDEX; rows * T], vec![0; rows * T]);
    let mut answers = Vec::new();
    for (row, pairs) in pairs.chunks(per_row).enumerate() {
        let mut at = row * T;
        for (prompt, answer, label) in pairs.iter().flatten() {
            let tokens = [&prompt[..], answer].concat();
            let end = at + tokens.len() - 1;
            all[at..end].copy_from_slice(&tokens[..tokens.len() - 1]);
            targets[at + prompt.len() - 1..end].copy_from_slice(answer);
            starts[at..end].fill((at - row * T) as u32);
            answers.push(Answer { places: at..end, label: *label });
            at = end;
        }
        starts[at..(row + 1) * T].fill((at - row * T) as u32);
    }
    let position = Position::default();
    Batch { ids: all, targets, starts: Some(starts), answers, begins: true, position }
}

/// The loss and the gradients of parameters by name, of batches of one step in so many parts each.
fn step(
    model: &mut dyn LanguageModel,
    preference: &Preference,
    config: &Config,
    batches: &[Batch],
    splits: usize,
) -> (f32, Totals, HashMap<String, Tensor>) {
    let (device, mut totals) = (model.device(), Vec::new());
    let mut own = config.clone();
    own.train.batch_size = batches[0].ids.len() / T;
    own.train.grad_accum_steps = batches.len();
    let share = Share::whole(Sequences::new(&own, model.config().kind));
    let pieces = share.pieces(splits);
    let mut sum = 0.0;
    {
        let forward = Forward { config: &own, device: &device, model: &*model, preference: Some(preference) };
        let mut carried = None;
        let mut loss = forward.losses(&share, (batches, &pieces), 0, &mut carried, &mut totals).unwrap();
        for piece in &pieces {
            let loss = loss(piece, None).unwrap();
            sum += loss.to_f32().unwrap()[0];
            loss.backward().unwrap();
        }
    }
    let mut gradients = HashMap::new();
    model.visit_parameters("", &mut |name, parameter| {
        gradients.extend(parameter.grad().map(|grad| (name.to_string(), grad.detach())));
    });
    let mut all = Totals::default();
    totals.iter().for_each(|part| all.add(&part.to_f32().unwrap()));
    (sum, all, gradients)
}

fn load(name: &str) -> Box<dyn LanguageModel> {
    hf::load(&folder().join("preference").join(name)).unwrap()
}

#[test]
fn losses_and_gradients_are_those_of_trl() {
    for device in Device::for_tests() {
        let mut comparison = Comparison::default();
        for family in ["gpt2", "llama"] {
            let golden = Golden::read(&format!("preference/{family}/golden"));
            for (case, settings) in CASES {
                let config = config(settings);
                let copy = Preference::needs_copy(&config).then(|| load(&format!("{family}-reference")));
                let copy = copy.map(|mut copy| copy.to_device(&device).map(|()| copy).unwrap());
                let preference = Preference::new(&config, copy).unwrap();
                let pairs = pairs(&golden, case);
                // One step: a row each; two in a row; a part for each row; two batches.
                let of = |pairs: &[[Document; 2]], per_row| batch(pairs, per_row);
                let layouts = [
                    (vec![of(&pairs, 1)], 1),
                    (vec![of(&pairs, 2)], 1),
                    (vec![of(&pairs, 1)], 5),
                    (vec![of(&pairs[..3], 2), of(&pairs[3..], 1)], 1),
                ];
                for (number, (batches, splits)) in layouts.into_iter().enumerate() {
                    let mut model = load(family);
                    let _arena = ParameterArena::new(&mut *model, &device, DType::F32).unwrap();
                    let (loss, totals, gradients) = step(&mut *model, &preference, &config, &batches, splits);
                    let what = format!("{family}, {case}, layout {number}");
                    let want = golden.values(&format!("{case}/loss"));
                    comparison.check("loss", &format!("{what}: loss"), &[loss], &want, 2e-6);
                    let told = preference.loss_of(&totals) as f32;
                    comparison.check("told", &format!("{what}: told"), &[told], &want, 2e-6);
                    check_rewards(&golden, case, &totals, &what);
                    check_gradients(&mut comparison, &golden, case, &gradients, &what);
                }
            }
        }
        comparison.finish(&device);
    }
}

fn check_rewards(golden: &Golden, case: &str, totals: &Totals, what: &str) {
    let (rewards, metrics) = (totals.rewards(), &golden.description["cases"][case]["metrics"]);
    let told = [
        ("rewards/chosen", rewards.chosen),
        ("rewards/rejected", rewards.rejected),
        ("rewards/margins", rewards.margin()),
        ("rewards/accuracies", rewards.accuracy),
    ];
    for (name, told) in told {
        let Some(want) = metrics[name].as_f64() else {
            assert_eq!(told, None, "{what}: {name}");
            continue;
        };
        // Differences of sums of up to 60.
        assert!((told.unwrap() - want).abs() < 2e-5, "{what}: {name}: {told:?}, not {want}");
    }
}

fn check_gradients(
    comparison: &mut Comparison,
    golden: &Golden,
    case: &str,
    gradients: &HashMap<String, Tensor>,
    what: &str,
) {
    let squares = gradients.values().flat_map(|gradient| gradient.to_f32().unwrap());
    let norm = squares.map(|x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
    let want = golden.values(&format!("{case}/grad_norm"));
    comparison.check("gradient norm", &format!("{what}: norm"), &[norm], &want, 1e-5);
    let (prefix, mut checked) = (format!("{case}/grad."), 0);
    for name in golden.file().names().iter().filter(|name| name.starts_with(&prefix)) {
        let full = &name[prefix.len()..];
        let own = full.strip_prefix("transformer.").or(full.strip_prefix("model.")).unwrap_or(full);
        let want = golden.values(name);
        let fused = own.replace("q_proj", "qkv_proj");
        let got = match (gradients.get(own), gradients.get(&fused)) {
            (Some(gradient), _) => gradient.to_f32().unwrap(),
            // Its first rows.
            (None, Some(gradient)) if own.contains("q_proj") => gradient.to_f32().unwrap()[..want.len()].to_vec(),
            _ => continue,
        };
        checked += 1;
        comparison.check("gradients", &format!("{what}: {full}"), &got, &want, 1e-5);
    }
    assert!(checked >= 3, "{what}: {checked} gradients were compared");
}

/// With adapters that are zero at first, a model is its own reference; later it is what it was.
#[test]
fn a_model_without_its_adapters_is_the_reference() {
    for device in Device::for_tests() {
        let config = config("train.objective=dpo lora.rank=4");
        assert!(!Preference::needs_copy(&config));
        let preference = Preference::new(&config, None).unwrap();
        let golden = Golden::read("preference/llama/golden");
        let mut model = load("llama");
        let lora = crate::train::setup::adapters::lora(&config).unwrap();
        lora.adapt(&mut *model, 3).unwrap();
        let arena = ParameterArena::new(&mut *model, &device, DType::F32).unwrap();
        let batches = [batch(&pairs(&golden, "dpo"), 1)];
        let (loss, totals, gradients) = step(&mut *model, &preference, &config, &batches, 1);
        assert!((loss - std::f32::consts::LN_2).abs() < 1e-6, "{device}: {loss}");
        let rewards = totals.rewards();
        assert!(rewards.margin().unwrap().abs() < 1e-6 && rewards.accuracy == Some(0.0), "{device}: {rewards:?}");
        assert!(gradients.keys().all(|name| name.contains("lora_")), "{device}: {:?}", gradients.keys());
        let counts = Counts::of(&batches[0].answers, &batches[0].targets, 0..5 * T);
        assert_eq!((counts.examples, counts.tokens), (5, 33));
        model.visit_parameters("", &mut |name, parameter| {
            if name.ends_with("lora_B.weight") {
                let values: Vec<f32> = (0..parameter.len()).map(|i| 0.3 * (i as f32).sin()).collect();
                parameter.write_bytes(bytemuck::cast_slice(&values)).unwrap();
            }
        });
        arena.zero_gradients();
        let [own, other] = margins(&mut *model, &preference, &config, &batches);
        assert!(own.abs() > 1e-2 && (own - other).abs() < 2e-5, "{device}: {own} {other}");
    }
}

/// The margins with this reference, and with a copy of the model of the goldens.
fn margins(model: &mut dyn LanguageModel, preference: &Preference, config: &Config, batches: &[Batch]) -> [f64; 2] {
    let mut copy = load("llama");
    copy.to_device(&model.device()).unwrap();
    let copied = Preference::new(config, Some(copy)).unwrap();
    [preference, &copied].map(|one| step(model, one, config, batches, 1).1.rewards().margin().unwrap())
}

/// Modules that are trained in full are not what they were without the adapters; at first the copy is the model.
#[test]
fn a_model_with_modules_in_full_is_compared_with_a_copy() {
    for (device, base) in Device::for_tests().into_iter().flat_map(|device| [(device.clone(), "f32"), (device, "f16")])
    {
        if base == "f16" && device.is_gpu() && !device.has_f16() {
            continue;
        }
        let settings = "train.objective=dpo lora.rank=4 lora.dora=true lora.modules_to_save=norm,embed_tokens";
        let mut config = config(&format!("{settings} lora.base_dtype={base}"));
        config.model.init = folder().join("preference/llama").display().to_string();
        assert!(Preference::needs_copy(&config));
        let shape = load("llama").config().clone();
        let preference = reference::preference(&config, &shape, &device).unwrap().unwrap();
        let mut model = first_model(&config, &shape, None).unwrap();
        let arena = ParameterArena::new(&mut *model, &device, DType::F32).unwrap();
        let golden = Golden::read("preference/llama/golden");
        let batches = [batch(&pairs(&golden, "dpo"), 1)];
        let (loss, _, gradients) = step(&mut *model, &preference, &config, &batches, 1);
        assert!((loss - std::f32::consts::LN_2).abs() < 1e-6, "{device} {base}: {loss}");
        assert!(gradients.contains_key("norm.weight") && gradients.contains_key("embed_tokens.weight"));
        model.visit_parameters("", &mut |name, parameter| {
            if name == "norm.weight" {
                let values: Vec<f32> = (0..parameter.len()).map(|i| 1.0 + 0.3 * (i as f32).sin()).collect();
                parameter.write_bytes(bytemuck::cast_slice(&values)).unwrap();
            }
        });
        arena.zero_gradients();
        let [own, other] = margins(&mut *model, &preference, &config, &batches);
        let most = if base == "f16" { 2e-3 } else { 2e-5 };
        assert!(own.abs() > 5e-3 && (own - other).abs() < most, "{device} {base}: {own} {other}");
    }
}
