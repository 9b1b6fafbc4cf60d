//! The keys that take one of a few words.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Declares an enum whose variants are words of the configuration, so that the word is written once.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// The words that the configuration takes, in the order of the variants.
            pub const CHOICES: &'static [&'static str] = &[$($word),+];

            /// The word that the configuration uses for it.
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
    /// The numbers that training computes with.
    Precision {
        /// Everything in 32-bit floats.
        F32 = "f32",
        /// 16-bit storage and matmuls with 32-bit accumulation and master weights.
        Mixed = "mixed",
    }
}

choice! {
    /// What weights that are not trained are stored as.
    WeightDtype {
        /// 32-bit floats.
        F32 = "f32",
        /// 16-bit floats alone: half the memory, and matmuls of 16-bit operands.
        F16 = "f16",
    }
}

choice! {
    /// How a GPU multiplies matrices of 32-bit floats.
    MatmulF32 {
        /// Decided when a run begins: `split-fp16` where that was measured to be faster and as precise, else `fma`.
        Auto = "auto",
        /// Fused multiply-adds.
        Fma = "fma",
        /// Large ones on tensor cores, each number split into two 16-bit floats (3xFP16).
        SplitFp16 = "split-fp16",
    }
}

choice! {
    /// How documents become rows of a batch.
    Packing {
        /// `documents` where some of their text is only read: prompts, and what others than the assistant say. Else
        /// `stream`.
        Auto = "auto",
        /// One after the other, cut into windows wherever they end; a token sees all of its window before it.
        Stream = "stream",
        /// As many whole documents in a row as it has room for; none sees another.
        Documents = "documents",
        /// One document in each row.
        Off = "off",
    }
}

choice! {
    /// Which activations backward computes again instead of keeping them.
    Recompute {
        /// None: all that backward needs is kept.
        None = "none",
        /// Those of each block, of which only its inputs are kept.
        Block = "block",
    }
}

choice! {
    /// How the angles of rotary positions are stretched for longer contexts.
    RopeScaling {
        /// Not at all.
        None = "none",
        /// All by one factor.
        Linear = "linear",
        /// Slow ones by a factor, fast ones not.
        Llama3 = "llama3",
    }
}

choice! {
    /// How the learning rate falls after the warm-up.
    Schedule {
        /// Half a cosine from `learning_rate` down to `min_learning_rate` at the last step.
        Cosine = "cosine",
        /// A straight line from `learning_rate` down to `min_learning_rate` at the last step.
        Linear = "linear",
        /// `learning_rate` to the end; `min_learning_rate` plays no part.
        Constant = "constant",
        /// Warm-up, stable, decay: `learning_rate`, and down to `min_learning_rate` over the last `decay_steps`.
        Wsd = "wsd",
        /// `learning_rate`, times `plateau_factor` whenever the validation loss has stopped falling.
        Plateau = "plateau",
    }
}

choice! {
    /// What is done about a loss or gradient that is not finite.
    NonFinite {
        /// Go on without the update.
        Skip = "skip",
        /// Go back to the last good checkpoint, with a lower learning rate.
        Rollback = "rollback",
        /// End the run with a diagnosis.
        Stop = "stop",
    }
}

choice! {
    /// The rule that turns gradients into updates.
    OptimizerKind {
        /// Adam with weight decay apart from the gradient (Loshchilov and Hutter, 2019).
        AdamW = "adamw",
        /// Adam with weight decay added to the gradient (Kingma and Ba, 2015).
        Adam = "adam",
        /// Stochastic gradient descent with momentum.
        Sgd = "sgd",
        /// The same with Nesterov's momentum, which looks ahead (Nesterov, 1983).
        Nag = "nag",
        /// Gradients divided by the root of the mean of their squares (Tieleman and Hinton, 2012).
        RmsProp = "rmsprop",
        /// The sign of a momentum, with weight decay apart from the gradient (Chen et al., 2023).
        Lion = "lion",
        /// Momentum made orthogonal, of the matrices in blocks (Jordan et al., 2024); AdamW of everything else.
        Muon = "muon",
    }
}

choice! {
    /// How Muon's learning rate follows from the shape of a matrix.
    AdjustLr {
        /// Times 0.2 sqrt(max(outputs, inputs)): updates are as large as AdamW's, and so are learning rates (Liu et
        /// al., 2025).
        MatchRmsAdamW = "match_rms_adamw",
        /// Times sqrt(max(1, outputs / inputs)) (Jordan et al., 2024).
        Original = "original",
    }
}
