//! The error type of the library: every variant has the operation, the expected and the actual value, and a remedy
//! where the user has one.

use crate::units;
use std::any::Any;
use std::path::{Path, PathBuf};

/// The result type of the library.
pub type Result<T> = std::result::Result<T, Error>;

/// All errors of the library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Operands with incompatible shapes.
    #[error("{op}: expected {expected}, got {got}")]
    Shape { op: &'static str, expected: String, got: String },

    /// An operand with an unsupported type.
    #[error("{op}: expected a tensor of type {expected}, got {got}")]
    DType { op: &'static str, expected: &'static str, got: &'static str },

    /// Operands on different devices.
    #[error("{op}: all tensors must be on one device, got {left} and {right}; move one with `to_device`")]
    DeviceMismatch { op: &'static str, left: String, right: String },

    /// A kernel's output overlaps another operand, or memory is accessed while it is borrowed.
    #[error("two operands share memory: {0}")]
    Aliasing(String),

    /// The WGSL of an application's op does not compile; `place` names the text and the line.
    #[error("{op}: {place}: {message}")]
    Wgsl { op: &'static str, place: String, message: String },

    /// `backward` on a tensor without a gradient.
    #[error("backward: {0}")]
    Autograd(String),

    /// No adapter matches the request.
    #[error("no usable GPU: {reason}\n  {hint}")]
    NoAdapter { reason: String, hint: String },

    /// The model exceeds a limit of the adapter.
    #[error("{what} needs {needed}, but {adapter} allows {limit}\n  {hint}")]
    GpuLimit { what: String, needed: String, adapter: String, limit: String, hint: String },

    /// The driver reported an error.
    #[error("the GPU reported an error: {0}")]
    Gpu(String),

    /// The device has no memory left.
    #[error(
        "{adapter} is out of memory: cannot allocate {}, {} in use\n  use a smaller \
         train.batch_size (with train.grad_accum_steps to make up for it) or model.block_size, \
         train.recompute = \"block\", or {}",
        units::bytes(*needed_bytes as u64), units::bytes(*used_bytes as u64),
        if *is_cpu { "end other programs that hold memory" } else { "--device cpu" }
    )]
    OutOfMemory { adapter: String, needed_bytes: usize, used_bytes: usize, is_cpu: bool },

    /// The device was lost: its driver ended, or it was removed.
    #[error("the GPU was lost: {0}")]
    DeviceLost(String),

    /// A thread of the program panicked: a bug in the program, not in its input.
    #[error("{thread} panicked: {message}; this is a bug in rustyflow, please report it")]
    Panicked { thread: &'static str, message: String },

    /// Ranks cannot continue: one ended or timed out.
    #[error("{0}")]
    Communication(String),

    /// An invalid configuration value; `place` names the file, variable or flag, `key` the key.
    #[error("{place}: {key}: {message}")]
    Config { place: String, key: String, message: String },

    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },

    /// An invalid corpus.
    #[error("{}: {message}", path.display())]
    Corpus { path: PathBuf, message: String },

    /// A data set failed to return a sample.
    #[error("sample {index} of the data set: {message}")]
    Sample { index: usize, message: String },

    /// A tokenizer could not be read, trained or applied.
    #[error("tokenizer {name}: {message}")]
    Tokenizer { name: String, message: String },

    /// A download failed or has the wrong hash.
    #[error("download of {url}: {message}")]
    Download { url: String, message: String },

    /// A model folder is damaged, incomplete or unsupported.
    #[error("{}: {message}", path.display())]
    Checkpoint { path: PathBuf, message: String },

    /// Training gave numbers that a run should not go on with, after `rollbacks` attempts to recover. `checkpoints` is
    /// the run's folder, if it holds checkpoints from before.
    #[error(
        "training diverged{}: {cause}. Lower train.learning_rate or set train.grad_clip{}",
        attempt(*rollbacks), kept(checkpoints.as_deref())
    )]
    Diverged { cause: String, rollbacks: usize, checkpoints: Option<PathBuf> },

    /// Another process writes into this run.
    #[error("{} is in use by {process}, a running training; wait for it, or stop it", path.display())]
    InUse { path: PathBuf, process: String },

    /// An invalid argument (a negative temperature, a prompt that exceeds the context).
    #[error("{0}")]
    Invalid(String),
}

/// " for the 2nd time", after one rollback.
fn attempt(rollbacks: usize) -> String {
    let ending = match rollbacks + 1 {
        1 => return String::new(),
        2 => "nd",
        3 => "rd",
        _ => "th",
    };
    format!(" for the {}{ending} time", rollbacks + 1)
}

fn kept(folder: Option<&Path>) -> String {
    folder.map_or(String::new(), |folder| format!("; {} holds the checkpoints from before", folder.display()))
}

/// The message of a panic, from the payload of `catch_unwind` or `JoinHandle::join`.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

impl Error {
    /// An I/O error with the file and the action ("read", "write", "create").
    pub fn io(action: &'static str, path: impl AsRef<Path>, source: std::io::Error) -> Error {
        Error::Io { action, path: path.as_ref().to_path_buf(), source }
    }
}
