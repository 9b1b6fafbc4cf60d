//! Evaluation of models: loss, multiple choice, and the first non-finite op.

pub(super) mod choices;
pub(super) mod diagnosis;
pub(super) mod evaluate;
pub(in crate::train) mod preference;
pub(super) mod prompt;
