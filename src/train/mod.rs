//! Trains a model: prepares corpus, tokenizer and parameters, runs the steps, evaluates, saves, and reports.
//!
//! The host only records work. The loss of a step is read back if it is logged, and then without waiting: the number
//! arrives while later steps are computed.

mod adapters;
mod carried;
mod checkpoint;
mod choices;
mod data_spec;
mod diagnosis;
mod evaluate;
mod events;
pub mod export;
#[cfg(test)]
mod families;
mod guard;
mod in_flight;
mod init;
mod init_sizes;
mod line_files;
mod loading;
mod lock;
mod log;
mod micro_batch;
mod model_shape;
mod opening;
mod options;
mod overfitting;
mod plan;
mod precision;
mod precompile;
mod prompt;
mod ranks;
#[cfg(test)]
mod recompute;
mod record;
mod replica;
mod resume;
mod run;
mod run_folder;
mod sinks;
#[cfg(test)]
mod steady_memory;
mod throughput;
mod trace;
mod trainer;
mod update_rules;
mod verify;
mod vocabulary;

pub use checkpoint::{Best, DataHash, Evaluated, FoundCheckpoint, GuardState, Plateau, TrainerState, find_checkpoint};
pub use choices::{ChoiceEvaluation, evaluate_choices};
pub use data_spec::{data_spec, packing};
pub use evaluate::{Evaluation, Windows, evaluate};
pub use events::{Event, LossScale, Start, Step, Summary};
pub use init::{find_init, take_shape_of_init};
pub use loading::{
    check_f16_weights, corpus_for_model, find_model, generates_with, load_model, move_model, trained_on, trained_rows,
    trained_with,
};
pub use lock::check_unused;
pub use opening::{AUTO, Opening, Tuned, choose_of_machine, resolve_matmul_f32};
pub use options::TrainOptions;
pub use plan::{
    Cluster, ClusterPlan, ClusterRow, Footprint, Memory, Passes, Plan, Rates, RunPlan, Speed, TimePlan, check_size,
    plan_run,
};
pub use precision::{check_precision, describe_precision, operands};
pub use prompt::{Prompt, prompt_ids};
pub use ranks::{RankTimes, rank_table};
pub use resume::run_config;
pub use run::{follow, train};
pub use run_folder::{RunFolder, newest_run, newest_unfinished_run, remove_run};
pub use verify::{Verified, verify_resume};
