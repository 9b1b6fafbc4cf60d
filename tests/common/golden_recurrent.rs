//! Recurrent language models over two batches that go on from each other, as PyTorch computes them
//! (`scripts/make_recurrent_goldens.py`).

use super::golden::{Comparison, Golden, folder};
use rustyflow::models::{self, Past};
use rustyflow::nn::Dropout;
use rustyflow::ops::Criterion;
use rustyflow::optim::ParameterArena;
use rustyflow::{DType, Device, Tensor};

/// Tolerances are some twenty times PyTorch's own float32 errors, which each `golden.json` states: 2e-7 for logits,
/// 6e-7 for states and gradients, of chains of 14 tokens.
pub fn check(device: &Device) {
    let mut comparison = Comparison::default();
    for (kind, states) in [("lstm", &["h", "c"][..]), ("gru", &["h"]), ("rnn", &["h"])] {
        let golden = Golden::read(&format!("recurrent/{kind}/golden"));
        let mut model = models::load(&folder().join("recurrent").join(kind)).unwrap();
        assert_eq!(model.config().kind.as_str(), kind);
        let parameters = ParameterArena::new(&mut *model, device, DType::F32).unwrap();
        let [ids, targets] = ["ids", "targets"].map(|name| golden.tensor(name, &Device::Cpu));
        let &[2, b, t] = &ids.shape()[..] else { panic!("two batches, not {}", ids.shape()) };
        // What is of one batch, of a tensor of both.
        let of = |name: &str, batch: usize| {
            let values = golden.values(name);
            values[batch * values.len() / 2..(batch + 1) * values.len() / 2].to_vec()
        };
        let mut cache = model.cache(b, t).unwrap();
        for batch in 0..2 {
            let [ids, targets] = [&ids, &targets].map(|both| {
                let own = both.to_u32().unwrap()[batch * b * t..(batch + 1) * b * t].to_vec();
                Tensor::from_u32(&own, [b, t], device).unwrap()
            });
            let want = of("logits", batch);
            let last = want.chunks(want.len() / b).flat_map(|row| &row[row.len() / t * (t - 1)..]).copied();
            let got = model.next_token_logits(&ids, &mut cache.clone()).unwrap().to_f32().unwrap();
            let mut check = |group: &str, got: &[f32], want: &[f32], tolerance: f32| {
                comparison.check(group, &format!("{kind}: {group}, batch {batch}"), got, want, tolerance);
            };
            check("next token's logits", &got, &last.collect::<Vec<_>>(), 5e-6);
            if batch == 0 {
                check("logits", &model.logits(&ids).unwrap().to_f32().unwrap(), &want, 5e-6);
            }

            parameters.zero_gradients();
            let past = Past::Cache(&mut cache);
            let loss = model.loss(&ids, &targets, past, &Dropout::off(), Criterion::default(), None).unwrap();
            loss.backward().unwrap();
            check("loss", &[loss.item().unwrap()], &of("loss", batch), 2e-6);
            for (name, state) in states.iter().zip(cache.states()) {
                check(name, &state.to_f32().unwrap(), &of(name, batch), 1e-5);
            }
            for (name, tensor) in model.parameters() {
                let gradient = tensor.grad().expect("parameters collect gradients").to_f32().unwrap();
                let want = golden.values(&format!("grad.{batch}.{name}"));
                check(&format!("gradient of {name}"), &gradient, &want, 1e-5);
            }
        }
        assert_eq!(cache.states().len(), states.len(), "{kind}");
        let compared = model.parameters().len();
        let stored = golden.file().names().iter().filter(|name| name.starts_with("grad.1.")).count();
        assert_eq!(compared, stored, "{kind}: every gradient of PyTorch is compared");
    }
    comparison.finish(device);
}
