//! The sizes that the rows are made of.

use crate::{Device, Error, Result};

/// The sizes that the rows are made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizes {
    pub name: &'static str,
    /// B.
    pub batch: usize,
    /// T.
    pub context: usize,
    /// C.
    pub width: usize,
    pub n_head: usize,
    pub n_layer: usize,
    /// V.
    pub vocab: usize,
    /// M = N = K of the square GEMMs.
    pub square: usize,
    /// Rows of logits: with V columns they must fit one binding.
    pub logit_rows: usize,
    /// Elements of the tensors with which the bandwidth is measured: several times the largest cache.
    pub stream: usize,
}

impl Sizes {
    /// The step case gpt2-124m: fills a large GPU.
    pub const GPT2: Sizes = Sizes {
        name: "gpt2-124m",
        batch: 16,
        context: 1024,
        width: 768,
        n_head: 12,
        n_layer: 12,
        vocab: 50_304,
        square: 4096,
        logit_rows: 2048,
        stream: 1 << 27,
    };
    /// For the CPU, and for GPUs that are none.
    pub const SMALL: Sizes = Sizes {
        name: "small",
        batch: 4,
        context: 128,
        width: 256,
        n_head: 4,
        n_layer: 2,
        vocab: 4096,
        square: 512,
        logit_rows: 256,
        stream: 1 << 23,
    };
    pub const ALL: [Sizes; 2] = [Sizes::GPT2, Sizes::SMALL];

    /// The sizes that a device can work through in a minute or so.
    pub fn for_device(device: &Device) -> Sizes {
        if device.is_hardware_gpu() { Sizes::GPT2 } else { Sizes::SMALL }
    }

    /// # Errors
    /// If one is 0, or they are so large that what is made of them cannot be counted.
    pub(in crate::bench) fn check(&self) -> Result<()> {
        let &Sizes { name, batch, context, width, n_head, n_layer, vocab, square, logit_rows, stream } = self;
        let small = [batch, context, width, n_head, n_layer, vocab, square, logit_rows];
        // Products of three, and a few times that, are below 2^63.
        if small.iter().chain([&stream]).any(|n| *n == 0) || small.iter().any(|n| *n > 1 << 19) || stream > 1 << 32 {
            return Err(Error::Invalid(format!("the sizes {name:?} must be above 0, and no larger than a model's")));
        }
        Ok(())
    }

    /// B * T.
    pub(super) fn tokens(&self) -> usize {
        self.batch * self.context
    }
}
