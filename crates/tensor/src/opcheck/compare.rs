//! An op's results on one device, for comparisons.

use super::Subject;
use crate::ops::random::splitmix64;
use crate::profile::MemoryKind;
use crate::tensor::{DType, Spec, Tensor, no_grad, run_into};
use crate::{Device, Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The same values on this device.
pub(super) fn moved(inputs: &[Tensor], device: &Device) -> Result<Vec<Tensor>> {
    inputs.iter().map(|x| x.detach().to_device(device)).collect()
}

/// Runs `body`, and turns a panic of the op under test into an error.
pub(super) fn caught<T>(body: impl FnOnce() -> Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
            Err(format!("the op panics: {text}"))
        }
    }
}

/// Numbers of any type.
pub(super) fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(match tensor.dtype() {
        DType::U32 => tensor.to_u32()?.into_iter().map(f64::from).collect(),
        _ => tensor.to_f32()?.into_iter().map(f64::from).collect(),
    })
}

/// The numbers of every output.
pub(super) fn outputs(op: &Subject, inputs: &[Tensor]) -> Result<Vec<Vec<f64>>> {
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    no_grad(|| (op.apply)(&inputs))?.iter().map(numbers).collect()
}

/// Whether every element of every output is written, and the same in every run: what memory held before must not show.
pub(super) fn expect_written(op: &Subject, inputs: &[Tensor]) -> Result<()> {
    let read: Vec<&Tensor> = inputs.iter().collect();
    let specs: Vec<&Spec> = read.iter().map(|x| x.spec()).collect();
    let wanted = op.kernel.output_specs(&specs)?;
    let over = |byte: u8| {
        let filled = |spec: &Spec| {
            let bytes = vec![byte; spec.size_bytes()];
            Tensor::from_bytes_as(MemoryKind::Other, &bytes, spec.clone(), &read[0].device())
        };
        let outputs = wanted.iter().map(filled).collect::<Result<Vec<_>>>()?;
        run_into(op.kernel, &read, &outputs.iter().collect::<Vec<_>>())?;
        outputs.iter().map(Tensor::to_bytes).collect::<Result<Vec<_>>>()
    };
    // As f32, 0.0 and 0.75; finite as f16 too.
    for (i, (a, b)) in over(0)?.into_iter().zip(over(0x3f)?).enumerate() {
        if let Some(byte) = a.iter().zip(&b).position(|(a, b)| a != b) {
            let element = byte / wanted[i].dtype.size_bytes();
            let what = "depends on what its memory held before: it is not written, or not the same in every run";
            return Err(Error::Invalid(format!("element {element} of output {i} {what}")));
        }
    }
    Ok(())
}

/// Values in -1..1, the same for every device.
pub(super) fn uniform(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    (0..count).map(|_| (splitmix64(&mut state) >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

/// Factors of output `i` in the loss, the sum of all outputs.
fn factors(i: usize, len: usize) -> Vec<f32> {
    uniform(len, 11 + i as u64)
}

/// Of each input, if it is f32.
pub(super) type Gradients = Vec<Option<Vec<f64>>>;

/// The gradients of the loss with respect to the f32 inputs, `None` of another; `None` if no output is f32.
pub(super) fn gradients(op: &Subject, inputs: &[Tensor]) -> Result<Option<Gradients>> {
    let leaf = |x: &Tensor| if x.dtype() == DType::F32 { x.requires_grad() } else { Ok(x.clone()) };
    let leaves = inputs.iter().map(leaf).collect::<Result<Vec<_>>>()?;
    let outputs = (op.apply)(&leaves.iter().collect::<Vec<_>>())?;
    let mut loss: Option<Tensor> = None;
    for (i, y) in outputs.iter().enumerate().filter(|(_, y)| y.dtype() == DType::F32) {
        let factors = Tensor::from_f32(&factors(i, y.len()), y.shape().clone(), &y.device())?;
        let part = y.mul(&factors)?.sum(..)?;
        loss = Some(match loss {
            Some(loss) => loss.add(&part)?,
            None => part,
        });
    }
    let Some(loss) = loss.filter(Tensor::needs_grad) else { return Ok(None) };
    loss.backward()?;
    leaves.iter().map(|x| x.grad().map(numbers).transpose()).collect::<Result<_>>().map(Some)
}

/// The loss that [`gradients`] differentiates, in f64.
pub(super) fn loss(op: &Subject, inputs: &[Tensor]) -> Result<f64> {
    let read: Vec<&Tensor> = inputs.iter().collect();
    let outputs = no_grad(|| (op.apply)(&read))?;
    let mut sum = 0.0;
    for (i, y) in outputs.iter().enumerate().filter(|(_, y)| y.dtype() == DType::F32) {
        sum += numbers(y)?.iter().zip(factors(i, y.len())).map(|(y, u)| y * f64::from(u)).sum::<f64>();
    }
    Ok(sum)
}
