//! What tests need: a module with every kind of parameter, and one of each optimizer.

use super::{AdjustLr, Group, Kind, MomentDtype, Optimizer, ParameterArena};
use crate::nn::{Dropout, Embedding, LayerNorm, Linear, Module, Norm, Parameter, init_keys, join};
use crate::ops::Criterion;
use crate::{DType, Device, Result, Tensor};

pub const ADAMW: Kind = Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };

/// One of each rule, and of those with more moments.
pub const KINDS: [Kind; 8] = [
    ADAMW,
    Kind::Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8 },
    Kind::Sgd { momentum: 0.9, nesterov: false },
    Kind::Muon { momentum: 0.95, nesterov: true, ns_steps: 5, adjust_lr: AdjustLr::MatchRmsAdamW },
    Kind::Lion { beta1: 0.9, beta2: 0.99 },
    Kind::Sgd { momentum: 0.9, nesterov: true },
    Kind::RmsProp { alpha: 0.99, eps: 1e-8, momentum: 0.0, centered: false },
    Kind::RmsProp { alpha: 0.9, eps: 1e-8, momentum: 0.9, centered: true },
];

pub const DTYPES: [MomentDtype; 2] = [MomentDtype::F32, MomentDtype::Int8];

/// Every device with operands of f32, and with those of f16 if it has them.
pub fn precisions() -> impl Iterator<Item = (Device, DType)> {
    let both = |device: Device| {
        let mixed = device.has_f16().then(|| (device.clone(), DType::F16));
        [(device, DType::F32)].into_iter().chain(mixed)
    };
    Device::for_tests().into_iter().flat_map(both)
}

/// The arena and the optimizer of a module, with a decay of 0.1 and clipping at 1. What Muon does not update, AdamW
/// does.
pub fn optimizer(module: &mut dyn Module, device: &Device, kind: Kind) -> (ParameterArena, Optimizer) {
    optimizer_in(module, device, kind, MomentDtype::F32)
}

/// [`optimizer`] with moments of this type.
pub fn optimizer_in(
    module: &mut dyn Module,
    device: &Device,
    kind: Kind,
    moment_dtype: MomentDtype,
) -> (ParameterArena, Optimizer) {
    let is_muon = matches!(kind, Kind::Muon { .. });
    let group_of = |_: &str, parameter: &Parameter| usize::from(is_muon && parameter.linear.is_none());
    let parameters = ParameterArena::grouped(module, device, DType::F32, &group_of).unwrap();
    let group = |number: usize| Group { moment_dtype, ..Group::new([kind, ADAMW][number], 0.1) };
    let optimizer = Optimizer::with_groups(&parameters, &group, 1.0).unwrap();
    (parameters, optimizer)
}

/// The next token from the last, by a table, a layer norm and a matrix.
pub struct Net {
    pub embed: Embedding,
    pub norm: LayerNorm,
    pub linear: Linear,
    pub head: Embedding,
}

impl Net {
    pub const VOCAB: usize = 65;
    const WIDTH: usize = 24;
    /// Of all parameters.
    pub const ELEMENTS: usize = 2 * Net::VOCAB * Net::WIDTH + Net::WIDTH * Net::WIDTH + 3 * Net::WIDTH;

    pub fn new(seed: u64) -> Net {
        Net::of_width(seed, Net::WIDTH)
    }

    pub fn of_width(seed: u64, c: usize) -> Net {
        Net::of_sizes(seed, Net::VOCAB, c)
    }

    /// Of a vocabulary of `v` tokens, `c` wide.
    pub fn of_sizes(seed: u64, v: usize, c: usize) -> Net {
        let mut keys = init_keys(seed);
        Net {
            embed: Embedding::new(v, c, 0.05, keys()).unwrap(),
            norm: LayerNorm::new(c, true).unwrap(),
            linear: Linear::new(c, c, true, 0.05, keys()).unwrap(),
            head: Embedding::new(v, c, 0.05, keys()).unwrap(),
        }
    }

    /// The mean loss of the ids (N), each of which is to be predicted from itself, its gradients times `scale`.
    pub fn loss(&self, ids: &Tensor, scale: Option<&Tensor>) -> Result<Tensor> {
        let head = self.head.weight.operand();
        let x = self.norm.forward(&self.embed.forward(ids)?, head.dtype())?; // (N, C)
        self.linear.forward(&x, &Dropout::off())?.linear_cross_entropy(head, ids, Criterion::default(), scale)
    }
}

impl Module for Net {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        self.embed.visit_parameters(&join(prefix, "embed"), visit);
        self.norm.visit_parameters(&join(prefix, "norm"), visit);
        self.linear.visit_parameters(&join(prefix, "linear"), visit);
        self.head.visit_parameters(&join(prefix, "head"), visit);
    }
}
