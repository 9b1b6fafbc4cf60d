//! Groups of parameters, and the rules that update them.

use super::int8::{BLOCK, MomentDtype, RECORD_BYTES};
use super::muon::AdjustLr;
use crate::{Error, Result};

/// Which rule updates parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    AdamW {
        beta1: f64,
        beta2: f64,
        eps: f64,
    },
    Adam {
        beta1: f64,
        beta2: f64,
        eps: f64,
    },
    /// Nesterov's looks ahead along the momentum.
    Sgd {
        momentum: f64,
        nesterov: bool,
    },
    /// `alpha` is the decay of the mean of squared gradients; centered subtracts the square of their mean.
    RmsProp {
        alpha: f64,
        eps: f64,
        momentum: f64,
        centered: bool,
    },
    Lion {
        beta1: f64,
        beta2: f64,
    },
    /// Only of weights of linear layers.
    Muon {
        momentum: f64,
        nesterov: bool,
        ns_steps: usize,
        adjust_lr: AdjustLr,
    },
}

impl Kind {
    /// How many numbers it remembers of each parameter.
    pub fn moments(&self) -> usize {
        self.moment_names().len()
    }

    /// PyTorch's names of what it remembers, in the order of [`State::moments`].
    pub(super) fn moment_names(&self) -> &'static [&'static str] {
        match *self {
            Kind::AdamW { .. } | Kind::Adam { .. } => &["exp_avg", "exp_avg_sq"],
            Kind::Lion { .. } => &["exp_avg"],
            Kind::Sgd { .. } | Kind::Muon { .. } => &["momentum_buffer"],
            Kind::RmsProp { momentum, centered, .. } => match (momentum > 0.0, centered) {
                (false, false) => &["square_avg"],
                (true, false) => &["square_avg", "momentum_buffer"],
                (false, true) => &["square_avg", "grad_avg"],
                (true, true) => &["square_avg", "momentum_buffer", "grad_avg"],
            },
        }
    }

    /// Fails on a setting with which no update makes sense.
    pub(super) fn check(&self) -> Result<()> {
        // A denominator of 0 would divide what never had a gradient by 0.
        let eps_is_wrong = |eps: f64| !(eps as f32 > 0.0 && eps.is_finite());
        let (decays, eps) = match *self {
            Kind::AdamW { beta1, beta2, eps } | Kind::Adam { beta1, beta2, eps } => {
                ([("beta1", beta1), ("beta2", beta2)], Some(eps))
            }
            Kind::Lion { beta1, beta2 } => ([("beta1", beta1), ("beta2", beta2)], None),
            Kind::Sgd { momentum, .. } | Kind::Muon { momentum, .. } => ([("momentum", momentum); 2], None),
            Kind::RmsProp { alpha, momentum, eps, .. } => ([("alpha", alpha), ("momentum", momentum)], Some(eps)),
        };
        if let Some((name, value)) = decays.into_iter().find(|(_, value)| !(0.0..1.0).contains(value)) {
            return Err(Error::Invalid(format!("optimizer: {name} must be at least 0 and below 1, got {value}")));
        }
        match eps.filter(|&eps| eps_is_wrong(eps)) {
            Some(eps) => Err(Error::Invalid(format!("optimizer: eps must be above 0 as a 32-bit number, got {eps}"))),
            None => Ok(()),
        }
    }
}

/// How the parameters of a group are updated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    pub kind: Kind,
    /// Multiplies the learning rate.
    pub lr_scale: f64,
    pub weight_decay: f64,
    /// Whether vectors, such as biases and the scales of norms, decay as well.
    pub decays_vectors: bool,
    pub moment_dtype: MomentDtype,
}

impl Group {
    /// At the learning rate itself, with this decay of matrices and embeddings, and moments of f32.
    pub fn new(kind: Kind, weight_decay: f64) -> Group {
        Group { kind, lr_scale: 1.0, weight_decay, decays_vectors: false, moment_dtype: MomentDtype::F32 }
    }

    /// Bytes that the moments of so many parameters take.
    pub fn moment_bytes(&self, parameters: usize) -> usize {
        let of_one = match self.moment_dtype {
            MomentDtype::F32 => size_of::<f32>().saturating_mul(parameters),
            MomentDtype::Int8 => RECORD_BYTES.saturating_mul(parameters.div_ceil(BLOCK)),
        };
        self.kind.moments().saturating_mul(of_one)
    }
}
