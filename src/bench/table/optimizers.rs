//! The updates of optimizers.

use super::{Row, SEED, Sizes};
use crate::Device;
use crate::nn::{LinearLayout, Module, Parameter};
use crate::ops::inputs::{AROUND_ZERO, draw};
use crate::optim::{AdjustLr, Kind, Optimizer, ParameterArena};
use crate::tensor::DType;

/// A model of one parameter.
struct Flat(Parameter);

impl Module for Flat {
    fn visit_parameters(&mut self, _: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        visit("weight", &mut self.0);
    }
}

/// The updates, with the norm of the gradients before them, over the arenas of a model.
pub(super) fn optimizers(s: &Sizes) -> Vec<Row> {
    let muon = Kind::Muon { momentum: 0.95, nesterov: true, ns_steps: 5, adjust_lr: AdjustLr::MatchRmsAdamW };
    let kinds = [
        ("adamw", Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }),
        ("adam", Kind::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8 }),
        ("sgd", Kind::Sgd { momentum: 0.9, nesterov: false }),
        ("rmsprop", Kind::RmsProp { alpha: 0.99, eps: 1e-8, momentum: 0.0, centered: false }),
        ("lion", Kind::Lion { beta1: 0.9, beta2: 0.99 }),
        ("muon", muon),
    ];
    let rows = s.vocab + 12 * s.n_layer * s.width;
    kinds
        .map(|(name, kind)| {
            // The matrices of one layer are enough for Muon.
            let outputs = vec![s.width; 12];
            let rows = if kind == muon { 12 * s.width } else { rows };
            let shape = vec![rows, s.width];
            Row::new(name, format!("{} parameters", rows * s.width), move |device| {
                let inputs = [(shape.clone(), AROUND_ZERO), (shape.clone(), AROUND_ZERO)];
                let [value, gradient] = &draw(&inputs, &Device::Cpu, SEED)?[..] else { unreachable!("two inputs") };
                let mut model = Flat(value.clone().into());
                model.0.linear = Some(LinearLayout { outputs_first: true, outputs: outputs.clone() });
                let parameters = ParameterArena::new(&mut model, device, DType::F32)?;
                model.0.grad().expect("gathered parameters have gradients").write_bytes(&gradient.to_bytes()?)?;
                // Steps so large that the update shows beside the tolerance.
                let learning_rate = 0.1;
                let mut optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0)?;
                Ok(Box::new(move || Ok(vec![optimizer.step(&parameters, learning_rate)?, model.0.detach()])))
            })
        })
        .into()
}
