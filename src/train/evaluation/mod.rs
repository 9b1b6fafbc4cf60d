//! Evaluation of models: loss, multiple choice, and the first non-finite op.

pub(super) mod choices;
pub(super) mod diagnosis;
pub(super) mod evaluate;
pub(super) mod prompt;
