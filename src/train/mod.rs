//! Trains a model: prepares corpus, tokenizer and parameters, runs the steps, evaluates, saves, and reports.
//!
//! The host only records work. The loss is read back only for logged steps, asynchronously.

mod checkpoint;
mod evaluation;
pub mod export;
mod loading;
mod plan;
mod run;
mod setup;
mod step;
#[cfg(test)]
mod tests;
mod trainer;

pub use checkpoint::{
    Best, DataHash, Evaluated, FoundCheckpoint, GuardState, Plateau, TrainerState, find_checkpoint, run_config,
};
pub use evaluation::choices::{ChoiceEvaluation, evaluate_choices};
pub use evaluation::evaluate::{Evaluation, Windows, evaluate};
pub use evaluation::prompt::{Prompt, prompt_ids};
pub use loading::{
    check_f16_weights, corpus_for_model, find_model, generates_with, load_model, move_model, trained_on, trained_rows,
    trained_with,
};
pub use plan::{
    Cluster, ClusterPlan, ClusterRow, Footprint, Memory, Passes, Plan, PlannedRanks, Rates, RunPlan, Saving, Speed,
    TimePlan, check_size, plan_run,
};
pub use run::events::{Event, LossScale, Rewards, Start, Step, Summary};
pub use run::folder::{RunFolder, newest_run, newest_unfinished_run, remove_run};
pub use run::lock::check_unused;
pub use run::options::TrainOptions;
pub use setup::data_spec::{data_spec, packing};
pub use setup::init::{find_init, take_shape_of_init};
pub use setup::opening::{AUTO, Opening, Tuned, choose_of_machine, resolve_matmul_f32};
pub use setup::precision::{check_precision, describe_precision, operands};
pub use step::ranks::{RankTimes, rank_table};
pub use step::update_rules::initial_training;
pub use trainer::run::{follow, train};
pub use trainer::verify::{Verified, verify_resume};
