//! How well a model predicts text: losses, answers among choices, and the first op that is not finite.

pub(super) mod choices;
pub(super) mod diagnosis;
pub(super) mod evaluate;
pub(super) mod prompt;
