//! The library's errors as Python's exceptions, with the library's message.

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::{PyErr, PyResult};
use rustyflow::Error;

/// The exception for an error: `ValueError` for shapes, values and settings, `TypeError` for types of elements,
/// `OSError` for files, `RuntimeError` for what the device, a run or the network reports.
pub fn exception(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Shape { .. }
        | Error::Config { .. }
        | Error::Corpus { .. }
        | Error::Sample { .. }
        | Error::Tokenizer { .. }
        | Error::Checkpoint { .. }
        | Error::Invalid(_) => PyValueError::new_err(message),
        Error::DType { .. } => PyTypeError::new_err(message),
        Error::Io { source, path, .. } => match source.raw_os_error() {
            // With the number Python raises the right subclass, such as `FileNotFoundError`.
            Some(number) => PyOSError::new_err((number, message, path)),
            None => PyOSError::new_err(message),
        },
        _ => PyRuntimeError::new_err(message),
    }
}

/// The same of a result.
pub trait OrRaise<T> {
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for rustyflow::Result<T> {
    #[inline]
    fn or_raise(self) -> PyResult<T> {
        self.map_err(exception)
    }
}
