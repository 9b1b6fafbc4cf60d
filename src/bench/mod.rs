//! Measures what a device can do, on random data: single kernels, whole training steps, and generation.

#[cfg(feature = "cli")]
mod exchange;
mod generate;
#[cfg(feature = "cli")]
mod hardware;
mod ops;
#[cfg(feature = "cli")]
mod plot;
mod step;
mod table;
#[cfg(feature = "cli")]
mod tune;
#[cfg(feature = "cli")]
mod verify;

#[cfg(feature = "cli")]
pub use exchange::measure_exchange;
pub use generate::{GenerateTiming, random_model, time_generate};
#[cfg(feature = "cli")]
pub use hardware::{HardwareReport, hardware_table};
pub use ops::{OpTiming, Peaks, measure_peaks, measure_roofline, select, time_row};
#[cfg(feature = "cli")]
pub use plot::{plot_generate, plot_steps};
pub use step::{StepCase, StepTiming, step_cases, time_step, time_training};
pub use table::{Row, Sizes, gemms};
#[cfg(feature = "cli")]
pub use tune::compare_tunings;
#[cfg(feature = "cli")]
pub use verify::{OpCheck, measure_copies, verify_ops};
