//! Models: sizes that make none, folders and arenas of something else.

use super::data::NOWHERE;
use super::{Defined, HUGE, Refused, Row, zeros};
use rustyflow::models::{
    self, AdapterWeights, Cache, Documents, Gpt2, LanguageModel, Llama, LlamaConfig, Lora, ModelConfig, ModelKind,
    ModelWeights, Next, Past, Slots, hidden_states, logits_of_states, to_device_as_f16, to_device_quantized,
};
use rustyflow::optim::ParameterArena;
use rustyflow::{DType, Device, Result, Shape, Tensor};
use std::path::Path;

/// A GPT-2 of a vocabulary of 20 and a context of 8.
pub fn small() -> ModelConfig {
    let (kind, vocab_size, block_size, n_layer, n_head, n_embd) = (ModelKind::GPT2, 20, 8, 1, 2, 8);
    ModelConfig { kind, vocab_size, block_size, n_layer, n_head, n_embd, bias: true, tie_embeddings: true, llama: None }
}

fn small_llama() -> ModelConfig {
    let llama = LlamaConfig {
        n_kv_head: 1,
        head_dim: 4,
        intermediate_size: 12,
        qkv_bias: false,
        sliding_window: None,
        norm_eps: 1e-5,
        rope_theta: 1e4,
        rope_scaling: None,
    };
    ModelConfig { kind: ModelKind::LLAMA, llama: Some(llama), ..small() }
}

fn with(change: fn(&mut LlamaConfig)) -> ModelConfig {
    let mut config = small_llama();
    change(config.llama.as_mut().expect("it is a Llama"));
    config
}

fn recurrent() -> ModelConfig {
    ModelConfig { kind: "lstm".parse().expect("a family"), ..small() }
}

/// Of this shape, on the device.
pub fn model(config: &ModelConfig, device: &Device) -> Result<Box<dyn LanguageModel>> {
    let mut model = models::build(config, 1)?;
    model.to_device(device)?;
    Ok(model)
}

fn cache(device: &Device) -> Result<Cache> {
    model(&small(), device)?.cache(2, HUGE)
}

fn lora() -> Lora {
    let (targets, modules_to_save, base) = (vec!["all-linear".into()], vec![], DType::F32);
    Lora { rank: 2, alpha: 4.0, rslora: false, dora: false, dropout: 0.0, targets, modules_to_save, base }
}

fn adapted(lora: &Lora) -> Result<()> {
    lora.adapt(&mut *models::build(&small(), 1)?, 1)
}

pub fn rows() -> Vec<Row> {
    [shapes(), pasts(), weights()].concat()
}

fn shapes() -> Vec<Row> {
    vec![
        ("build", Refused, |_| models::build(&ModelConfig { n_layer: HUGE, ..small() }, 1).map(drop)),
        ("build", Refused, |_| models::build(&ModelConfig { vocab_size: 0, ..recurrent() }, 1).map(drop)),
        ("build", Refused, |_| models::build(&ModelConfig { n_embd: HUGE, ..recurrent() }, 1).map(drop)),
        ("build", Refused, |_| models::build(&ModelConfig { n_layer: HUGE, ..recurrent() }, 1).map(drop)),
        ("build", Refused, |_| models::build(&ModelConfig { llama: None, ..small_llama() }, 1).map(drop)),
        ("Gpt2::new", Refused, |_| Gpt2::new(ModelConfig { n_head: 0, ..small() }, 1).map(drop)),
        ("Gpt2::new", Refused, |_| Gpt2::new(ModelConfig { n_head: 3, ..small() }, 1).map(drop)),
        ("Gpt2::new", Refused, |_| Gpt2::new(ModelConfig { vocab_size: HUGE, ..small() }, 1).map(drop)),
        ("Gpt2::new", Refused, |_| Gpt2::new(small_llama(), 1).map(drop)),
        ("Llama::new", Refused, |_| Llama::new(small(), false, 1).map(drop)),
        ("Llama::new", Refused, |_| Llama::new(ModelConfig { block_size: HUGE, ..small_llama() }, true, 1).map(drop)),
        ("Llama::new", Refused, |_| Llama::new(with(|llama| llama.n_kv_head = 0), true, 1).map(drop)),
        ("Llama::new", Refused, |_| Llama::new(with(|llama| llama.head_dim = HUGE), false, 1).map(drop)),
        ("Llama::new", Refused, |_| Llama::new(with(|llama| llama.intermediate_size = HUGE), false, 1).map(drop)),
        ("Llama::new", Refused, |_| Llama::new(with(|llama| llama.sliding_window = Some(0)), false, 1).map(drop)),
        ("ModelConfig::tensor_names", Defined, |_| {
            let names =
                ["", ".", "layers.0.self_attn.qkv_proj.weight", "layers.0.mlp.gate_up_proj.weight", "wte.weight"];
            for (config, name) in [small(), small_llama(), recurrent()].iter().flat_map(|c| names.map(|name| (c, name)))
            {
                for shape in [Shape::from([]), Shape::from([0]), Shape::from([HUGE, 3])] {
                    assert!(!config.tensor_names(name, &shape).is_empty());
                }
            }
            Ok(())
        }),
    ]
}

fn pasts() -> Vec<Row> {
    vec![
        ("Documents::new", Refused, |d| Documents::new(&[0; 5], [2, 3], d).map(drop)),
        ("Documents::new", Refused, |d| Documents::new(&[0, 0, 3, 0, 0, 0], [2, 3], d).map(drop)),
        ("Documents::new", Refused, |d| Documents::new(&[0], [1, 0], d).map(drop)),
        ("Documents::new", Refused, |d| Documents::new(&[], [HUGE, HUGE], d).map(drop)),
        ("Cache::layer", Refused, |d| cache(d)?.layer(HUGE).map(drop)),
        ("Cache::layer", Refused, |d| model(&recurrent(), d)?.cache(2, HUGE)?.layer(0).map(drop)),
        ("Cache::truncate", Defined, |d| {
            let mut cache = cache(d)?;
            cache.truncate(HUGE)?;
            cache.truncate(0)
        }),
        ("Slots::new", Refused, |d| Slots::new(&*model(&small(), d)?, 0, 8).map(drop)),
        ("Slots::new", Defined, |d| Slots::new(&*model(&small(), d)?, 1, HUGE).map(drop)),
        ("Slots::size_bytes", Defined, |d| {
            assert_eq!(Slots::size_bytes(&*model(&small(), d)?, HUGE, HUGE), u64::MAX);
            Ok(())
        }),
        ("Slots::open", Refused, |d| {
            let model = model(&small(), d)?;
            Slots::new(&*model, 1, 8)?.open(&*model, HUGE, 0).map(drop)
        }),
        ("Slots::close", Refused, |d| {
            let model = model(&small(), d)?;
            let mut slots = Slots::new(&*model, 1, 8)?;
            let cache = slots.open(&*model, 0, 0)?;
            slots.close(1, &cache)
        }),
        ("Slots::step", Refused, |d| {
            let model = model(&small(), d)?;
            Slots::new(&*model, 1, 8)?.step(&*model, &[None, None]).map(drop)
        }),
        ("Slots::step", Refused, |d| {
            let model = model(&small(), d)?;
            Slots::new(&*model, 1, 8)?.step(&*model, &[Some(Next { id: 1, position: HUGE })]).map(drop)
        }),
        ("hidden_states", Refused, |d| {
            let (model, ids) = (model(&small(), d)?, Tensor::from_u32(&[1; 9], [1, 9], d)?);
            hidden_states(&*model, &ids, &mut model.cache(1, 8)?).map(drop)
        }),
        ("logits_of_states", Refused, |d| {
            logits_of_states(&*model(&small(), d)?, &Tensor::from_f32(&[0.0; 3], [1, 3], d)?).map(drop)
        }),
        ("Past::layer", Refused, |d| Past::Cache(&mut cache(d)?).layer(1).map(drop)),
        ("Past::layer", Defined, |_| {
            assert!(Past::Nothing.layer(HUGE)?.is_none());
            Ok(())
        }),
    ]
}

fn weights() -> Vec<Row> {
    vec![
        ("load", Refused, |_| models::load(Path::new(NOWHERE)).map(drop)),
        ("to_device_as_f16", Refused, |d| {
            let mut model = models::build(&small(), 1)?;
            model.visit_parameters("", &mut |name, parameter| {
                if name.ends_with("c_fc.weight") {
                    parameter.value = parameter.value.scale(1e9).expect("it is f32");
                }
            });
            to_device_as_f16(&mut *model, "a setting", d)
        }),
        ("to_device_quantized", Refused, |d| {
            to_device_quantized(&mut *models::build(&small(), 1)?, DType::Nf4, "a setting", d)
        }),
        ("ModelWeights::with_special_ids", Refused, |d| {
            let arena = ParameterArena::new(&mut *models::build(&small(), 1)?, d, DType::F32)?;
            ModelWeights::new(small(), &arena, vec![]).with_special_ids(Default::default()).encode().map(drop)
        }),
        ("ModelWeights::new", Refused, |d| {
            let arena = ParameterArena::new(&mut *models::build(&small(), 1)?, d, DType::F32)?;
            ModelWeights::new(small(), &arena, vec![]).encode().map(drop)
        }),
        ("ModelWeights::new", Refused, |d| {
            let arena = ParameterArena::new(&mut *models::build(&small(), 1)?, d, DType::F32)?;
            ModelWeights::new(small(), &arena, vec![zeros([3], d)?.read_later()?.wait()?]).encode().map(drop)
        }),
        ("Lora::adapt", Refused, |_| adapted(&Lora { rank: 0, ..lora() })),
        ("Lora::adapt", Refused, |_| adapted(&Lora { rank: HUGE, ..lora() })),
        ("Lora::adapt", Refused, |_| adapted(&Lora { targets: vec!["no such layer".into()], ..lora() })),
        ("Lora::adapt", Refused, |_| adapted(&Lora { modules_to_save: vec!["c_attn".into()], ..lora() })),
        ("AdapterWeights::new", Refused, |d| {
            let arena = ParameterArena::new(&mut *models::build(&small(), 1)?, d, DType::F32)?;
            let values = zeros([3], d)?.read_later()?.wait()?;
            AdapterWeights::new(lora(), String::new(), &small(), &arena, values).encode().map(drop)
        }),
        ("AdapterWeights::new", Refused, |d| {
            let mut model = models::build(&small(), 1)?;
            lora().adapt(&mut *model, 1)?;
            let arena = ParameterArena::new(&mut *model, d, DType::F32)?;
            let values = zeros([3], d)?.read_later()?.wait()?;
            AdapterWeights::new(lora(), String::new(), &small(), &arena, values).encode().map(drop)
        }),
        ("AdapterWeights::new", Refused, |d| {
            let mut model = models::build(&small(), 1)?;
            lora().adapt(&mut *model, 1)?;
            let arena = ParameterArena::new(&mut *model, d, DType::F32)?;
            let (values, other) = (arena.trained()?.read_later()?.wait()?, Lora { rank: HUGE, ..lora() });
            AdapterWeights::new(other, String::new(), &small(), &arena, values).encode().map(drop)
        }),
        ("read_adapters", Refused, |_| {
            models::read_adapters(Path::new(NOWHERE), &lora(), &mut *models::build(&small(), 1)?)
        }),
    ]
}
