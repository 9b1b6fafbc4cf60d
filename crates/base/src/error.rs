//! The one error type of the library: every variant says what was being done, what was expected and what was found,
//! and, where a person can mend it, how.

use std::any::Any;
use std::path::{Path, PathBuf};

/// What every fallible function of the library returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong in the library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An op was given tensors whose shapes do not fit together.
    #[error("{op}: expected {expected}, got {got}")]
    Shape { op: &'static str, expected: String, got: String },

    /// An op was given a tensor of a type it does not compute with.
    #[error("{op}: expected a tensor of type {expected}, got {got}")]
    DType { op: &'static str, expected: &'static str, got: &'static str },

    /// An op was given tensors that live on different devices.
    #[error("{op}: all tensors must be on one device, got {left} and {right}; move one with `to_device`")]
    DeviceMismatch { op: &'static str, left: String, right: String },

    /// A kernel would read what it writes, or memory is reached while something excludes that.
    #[error("two operands share memory: {0}")]
    Aliasing(String),

    /// The WGSL of an application's op does not compile: `place` says in which line of which text.
    #[error("{op}: {place}: {message}")]
    Wgsl { op: &'static str, place: String, message: String },

    /// `backward` was called on something that has no gradient.
    #[error("backward: {0}")]
    Autograd(String),

    /// No adapter fits what was asked for.
    #[error("no usable GPU: {reason}\n  {hint}")]
    NoAdapter { reason: String, hint: String },

    /// The adapter cannot hold or bind what the model needs.
    #[error("{what} needs {needed}, but {adapter} allows {limit}\n  {hint}")]
    GpuLimit { what: String, needed: String, adapter: String, limit: String, hint: String },

    /// The driver reported an error.
    #[error("the GPU reported an error: {0}")]
    Gpu(String),

    /// The device has no memory left.
    #[error(
        "{adapter} has no memory left for {needed_bytes} bytes more, {used_bytes} are in use\n  use a smaller \
         train.batch_size (with train.grad_accum_steps to make up for it), model or model.block_size, or {}",
        if *is_cpu { "end other programs that hold memory" } else { "--device cpu" }
    )]
    OutOfMemory { adapter: String, needed_bytes: usize, used_bytes: usize, is_cpu: bool },

    /// The device is gone: its driver has ended, or it was removed.
    #[error("the GPU was lost: {0}")]
    DeviceLost(String),

    /// A thread of the program panicked: a fault of the program, not of what it was given.
    #[error("{thread} panicked: {message}; this is a bug in rustyflow, please report it")]
    Panicked { thread: &'static str, message: String },

    /// The ranks of a job cannot go on together: one of them ended, or did not come in time.
    #[error("{0}")]
    Communication(String),

    /// A value of the configuration is wrong: `place` names the file, variable or flag, `key` the key in it.
    #[error("{place}: {key}: {message}")]
    Config { place: String, key: String, message: String },

    /// The operating system refused something with a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },

    /// A corpus cannot be used as it is.
    #[error("{}: {message}", path.display())]
    Corpus { path: PathBuf, message: String },

    /// A data set could not hand over a sample.
    #[error("sample {index} of the data set: {message}")]
    Sample { index: usize, message: String },

    /// A tokenizer could not be read, trained or applied.
    #[error("tokenizer {name}: {message}")]
    Tokenizer { name: String, message: String },

    /// A download failed or brought the wrong bytes.
    #[error("download of {url}: {message}")]
    Download { url: String, message: String },

    /// A saved model is damaged, incomplete or not one of ours.
    #[error("{}: {message}", path.display())]
    Checkpoint { path: PathBuf, message: String },

    /// Training gave numbers that a run should not go on with, after `rollbacks` attempts to recover. `checkpoints` is
    /// the run's folder, if it holds checkpoints from before.
    #[error(
        "training diverged{}: {cause}. Lower train.learning_rate or set train.grad_clip{}",
        attempt(*rollbacks), kept(checkpoints.as_deref())
    )]
    Diverged { cause: String, rollbacks: usize, checkpoints: Option<PathBuf> },

    /// Two processes would write into one run.
    #[error("{} is in use by {process}, which trains there; wait for its end, or end it", path.display())]
    InUse { path: PathBuf, process: String },

    /// An argument that makes no sense (a temperature below zero, a prompt that is too long).
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

/// What a panic said, from what `catch_unwind` or a thread's handle gives.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

impl Error {
    /// An I/O error that names the file and what was being done with it ("read", "write", "create").
    pub fn io(action: &'static str, path: impl AsRef<Path>, source: std::io::Error) -> Error {
        Error::Io { action, path: path.as_ref().to_path_buf(), source }
    }
}
