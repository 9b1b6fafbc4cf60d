//! Public functions with arguments that make no sense: they return an error, or something that is defined, and never
//! panic. What ops do with tensors that do not fit is in `src/ops/boundary.rs`. A function of a public type that takes
//! an argument has a row here, by its name in the sources: a test asks for it.

mod bench;
mod comm;
mod config;
mod data;
mod device;
mod fit;
mod generate;
mod gpu;
mod loading;
mod models;
mod nn;
mod opcheck;
mod optim;
mod profile;
mod report;
mod sources;
mod train;

use rustyflow::gpu::gpu_for_tests;
use rustyflow::{DType, Device, Error, Result, Shape, Tensor};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What must come of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Want {
    /// An error about what was given.
    Refused,
    /// A result.
    Defined,
}

use Want::{Defined, Refused};

/// The function that is called, as "Linear::new", and the call.
type Row = (&'static str, Want, fn(&Device) -> Result<()>);

fn rows() -> Vec<Row> {
    let library = [nn::rows(), optim::rows(), data::rows(), device::rows(), fit::rows()].concat();
    [
        library,
        models::rows(),
        generate::rows(),
        comm::rows(),
        train::rows(),
        loading::rows(),
        config::rows(),
        report::rows(),
        gpu::rows(),
        profile::rows(),
        opcheck::rows(),
        bench::rows(),
    ]
    .concat()
}

/// Shapes whose elements cannot be counted, are more than any memory holds, or wrap around to few.
const HUGE: usize = usize::MAX;
const LARGE: usize = 1 << 48;

fn zeros(shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
    Tensor::zeros(shape, DType::F32, device)
}

fn ids(shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
    Tensor::zeros(shape, DType::U32, device)
}

fn devices() -> Vec<Device> {
    [Device::Cpu].into_iter().chain(gpu_for_tests().map(Device::Gpu)).collect()
}

/// Whether an error says what is wrong with what was given, and not that something broke.
fn is_about_arguments(error: &Error) -> bool {
    !matches!(error, Error::Gpu(_) | Error::DeviceLost(_) | Error::Aliasing(_))
}

#[test]
fn no_public_function_panics_on_arguments_that_make_no_sense() {
    let mut failures = Vec::new();
    for device in devices() {
        for (i, (function, want, call)) in rows().into_iter().enumerate() {
            let outcome = catch_unwind(AssertUnwindSafe(|| call(&device)));
            let complaint = match &outcome {
                Err(_) => Some("panics".to_string()),
                Ok(Err(error)) if !is_about_arguments(error) => Some(format!("breaks: {error}")),
                Ok(Err(error)) if want == Defined => Some(format!("is refused: {error}")),
                Ok(Ok(())) if want == Refused => Some("is accepted".to_string()),
                Ok(_) => None,
            };
            failures.extend(complaint.map(|complaint| format!("{device}: row {i}, {function}: {complaint}")));
        }
        // Nothing that was refused may have broken it.
        let x = Tensor::from_f32(&[1.0, 2.0], [2], &device).and_then(|x| x.sum(0)?.item());
        assert_eq!(x.ok(), Some(3.0), "{device} does not compute any more");
    }
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_public_function_that_takes_an_argument_has_a_row() {
    let tested: BTreeSet<String> = rows().into_iter().map(|(function, ..)| function.to_string()).collect();
    let functions = sources::functions();
    let missing: Vec<_> = functions.difference(&tested).collect();
    assert!(missing.is_empty(), "tests/no_panic has no row of these: {missing:?}");
    let gone: Vec<_> = tested.difference(&functions).collect();
    assert!(gone.is_empty(), "there is no function of this name: {gone:?}");
}
