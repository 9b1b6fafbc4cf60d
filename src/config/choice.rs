//! Keys with a fixed set of values.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Declares an enum with its configuration words.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// The configuration words, in the order of the variants.
            pub const CHOICES: &'static [&'static str] = &[$($word),+];

            /// Its configuration word.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                match word {
                    $($word => Ok($name::$variant),)+
                    _ => Err(format!("expected one of {}, got `{word}`", Self::CHOICES.join(", "))),
                }
            }
        }
    };
}

choice! {
    /// Precision of training.
    Precision {
        /// Everything in 32-bit floats.
        F32 = "f32",
        /// f16 GEMMs and activations, with f32 accumulation and master weights.
        Mixed = "mixed",
    }
}

choice! {
    /// Type of gradients in transfers.
    WireDtype {
        /// 32-bit floats.
        F32 = "f32",
        /// 16-bit floats.
        F16 = "f16",
    }
}

choice! {
    /// How devices exchange gradients.
    Comm {
        /// NCCL or RCCL where every rank has such a card and the library is found, else host memory.
        Auto = "auto",
        /// NCCL or RCCL, or an error.
        Nccl = "nccl",
        /// Host memory.
        Host = "host",
    }
}

choice! {
    /// Storage type of frozen weights.
    WeightDtype {
        /// 32-bit floats.
        F32 = "f32",
        /// 16-bit floats only: half the memory, and f16 GEMMs.
        F16 = "f16",
        /// ggml's blocks of 8 bits: 8.5 bits per weight.
        Q8_0 = "q8_0",
        /// ggml's blocks of 4 bits: 4.5 bits per weight.
        Q4_0 = "q4_0",
        /// NormalFloat with double quantization, as in QLoRA: 4.13 bits per weight.
        Nf4 = "nf4",
    }
}

choice! {
    /// f32 GEMMs on a GPU.
    MatmulF32 {
        /// Decided at the start of a run: `split-fp16` if autotuning measured it as faster and as precise, else `fma`.
        Auto = "auto",
        /// Fused multiply-adds.
        Fma = "fma",
        /// Large GEMMs on tensor cores, with each number split into two 16-bit floats (3xFP16).
        SplitFp16 = "split-fp16",
    }
}

choice! {
    /// Packing of documents into rows of a batch.
    Packing {
        /// `documents` if some of their text is masked in the loss (prompts, other turns than the assistant's), else
        /// `stream`.
        Auto = "auto",
        /// Documents are concatenated and cut into windows; a token attends to all previous tokens of its window.
        Stream = "stream",
        /// Several whole documents per row, without attention between them.
        Documents = "documents",
        /// One document per row.
        Off = "off",
    }
}

choice! {
    /// What is learned.
    Objective {
        /// Each token of the text.
        NextToken = "next_token",
        /// Direct preference optimization: which of two answers is better.
        Dpo = "dpo",
        /// Identity preference optimization, by mean log-probabilities.
        Ipo = "ipo",
        /// Odds-ratio preference optimization, without a reference model.
        Orpo = "orpo",
        /// Kahneman-Tversky optimization: which answers are desirable.
        Kto = "kto",
        /// Simple preference optimization, without a reference model.
        Simpo = "simpo",
    }
}

impl Objective {
    /// Whether it is one of preferences.
    pub fn is_preference(self) -> bool {
        self != Objective::NextToken
    }

    /// Whether it compares the model with a frozen one.
    pub fn has_reference(self) -> bool {
        matches!(self, Objective::Dpo | Objective::Ipo | Objective::Kto)
    }
}

choice! {
    /// Activation recomputation.
    Recompute {
        /// None: all activations are saved for backward.
        None = "none",
        /// Attention: only its queries, keys and values are saved.
        Attention = "attention",
        /// By block: only the inputs of each block are saved.
        Block = "block",
        /// As little as the memory allows: nothing, attention, or some blocks.
        Auto = "auto",
    }
}

choice! {
    /// When parameters are updated.
    UpdateTime {
        /// All after backward.
        Step = "step",
        /// A part as soon as backward has computed its gradients, which are then freed.
        Layerwise = "layerwise",
    }
}

choice! {
    /// What lies in host memory while a GPU trains.
    Offload {
        /// Nothing.
        None = "none",
        /// Weights in f32 and the optimizer's moments.
        Optimizer = "optimizer",
    }
}

choice! {
    /// Storage type of the optimizer's moments.
    StateDtype {
        /// 4 bytes each.
        F32 = "f32",
        /// 8 bits each, with one f32 for each block of 256.
        Int8 = "int8",
    }
}

choice! {
    /// RoPE scaling for longer contexts.
    RopeScaling {
        /// No scaling.
        None = "none",
        /// All frequencies divided by one factor.
        Linear = "linear",
        /// Low frequencies divided by a factor, high ones unchanged.
        Llama3 = "llama3",
    }
}

choice! {
    /// Learning-rate schedule after the warm-up.
    Schedule {
        /// Half a cosine from `learning_rate` down to `min_learning_rate` at the last step.
        Cosine = "cosine",
        /// A straight line from `learning_rate` down to `min_learning_rate` at the last step.
        Linear = "linear",
        /// `learning_rate` to the end; `min_learning_rate` is unused.
        Constant = "constant",
        /// Warm-up, stable, decay: `learning_rate`, and down to `min_learning_rate` over the last `decay_steps`.
        Wsd = "wsd",
        /// `learning_rate`, multiplied by `plateau_factor` whenever the validation loss stops falling.
        Plateau = "plateau",
    }
}

choice! {
    /// Reaction to a non-finite loss or gradient.
    NonFinite {
        /// Skip the update.
        Skip = "skip",
        /// Roll back to the last good checkpoint, with a lower learning rate.
        Rollback = "rollback",
        /// End the run with a diagnosis.
        Stop = "stop",
    }
}

choice! {
    /// The optimizer.
    OptimizerKind {
        /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
        AdamW = "adamw",
        /// Adam with weight decay added to the gradient (Kingma and Ba, 2015).
        Adam = "adam",
        /// Stochastic gradient descent with momentum.
        Sgd = "sgd",
        /// SGD with Nesterov momentum (Nesterov, 1983).
        Nag = "nag",
        /// Gradients divided by the root of the mean of their squares (Tieleman and Hinton, 2012).
        RmsProp = "rmsprop",
        /// The sign of the momentum, with decoupled weight decay (Chen et al., 2023).
        Lion = "lion",
        /// Orthogonalized momentum for the matrices of blocks (Jordan et al., 2024); AdamW for all other parameters.
        Muon = "muon",
    }
}

choice! {
    /// Scaling of Muon's learning rate by the shape of a matrix.
    AdjustLr {
        /// Times 0.2 sqrt(max(outputs, inputs)): updates are as large as AdamW's, and so are learning rates (Liu et
        /// al., 2025).
        MatchRmsAdamW = "match_rms_adamw",
        /// Times sqrt(max(1, outputs / inputs)) (Jordan et al., 2024).
        Original = "original",
    }
}
