//! The derivative of a custom op, as its author writes it, and as the tape calls it.

use super::op::CustomOp;
use crate::tensor::{DType, Grads, Op, Saved, Saves, Spec, Tensor};
use crate::{Device, Error, Result};
use std::sync::OnceLock;

/// What the backward of a custom op is given.
pub struct OutputGrads<'a> {
    op: &'a Recorded,
    saved: &'a Saved,
    grads: &'a [Option<Tensor>],
    needed: Vec<bool>,
    /// Of outputs that did not take part in the loss, once they were asked for.
    zeros: Vec<OnceLock<Tensor>>,
}

impl OutputGrads<'_> {
    /// The gradient of output `i`: zeros if it took no part in the loss.
    ///
    /// # Errors
    /// If there is no such output, or no memory for the zeros.
    pub fn output_grad(&self, i: usize) -> Result<&Tensor> {
        let Some(spec) = self.op.outputs.get(i) else { return Err(self.lacks("output", i)) };
        if let Some(gradient) = &self.grads[i] {
            return Ok(gradient);
        }
        if self.zeros[i].get().is_none() {
            let zeros = Tensor::zeros(spec.shape.clone(), spec.dtype, &self.op.device)?;
            let _ = self.zeros[i].set(zeros);
        }
        self.zeros[i].get().ok_or_else(|| self.lacks("output", i))
    }

    /// Input `i`.
    ///
    /// # Errors
    /// If [`keeps`](super::Builder::keeps) does not name it.
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        let kept = self.op.saves().inputs.contains(&i);
        if kept { Ok(self.saved.input(i)) } else { Err(self.lacks("kept input", i)) }
    }

    /// Output `i`.
    ///
    /// # Errors
    /// If [`keeps`](super::Builder::keeps) does not name it.
    pub fn output(&self, i: usize) -> Result<&Tensor> {
        let kept = self.op.saves().outputs.contains(&i);
        if kept { Ok(self.saved.output(i)) } else { Err(self.lacks("kept output", i)) }
    }

    /// Whether anybody needs the gradient of input `i`: what is not needed may be `None`.
    pub fn needs_grad(&self, i: usize) -> bool {
        self.needed.get(i).copied().unwrap_or(false)
    }

    fn lacks(&self, what: &str, i: usize) -> Error {
        Error::Autograd(format!("{} asks for {what} {i}, which there is not", self.op.op.name()))
    }
}

/// A custom op on the tape.
pub(super) struct Recorded {
    pub op: CustomOp,
    pub inputs: Vec<Spec>,
    pub outputs: Vec<Spec>,
    pub device: Device,
}

impl Op for Recorded {
    fn saves(&self) -> Saves {
        self.op.definition().keeps
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let name = self.op.name();
        let Some(backward) = &self.op.definition().backward else {
            return Err(Error::Autograd(format!("{name} has no backward")));
        };
        let needed = (0..self.inputs.len()).map(|i| grads.needs_grad(i)).collect();
        let zeros = self.outputs.iter().map(|_| OnceLock::new()).collect();
        let given = backward(&OutputGrads { op: self, saved, grads: grad_output, needed, zeros })?;
        if given.len() != self.inputs.len() {
            let (got, want) = (given.len(), self.inputs.len());
            return Err(Error::Autograd(format!("{name} gave {got} gradients for {want} inputs")));
        }
        for (i, (gradient, input)) in given.into_iter().zip(&self.inputs).enumerate() {
            if !grads.needs_grad(i) {
                continue;
            }
            let wrong =
                |got: String| Error::Autograd(format!("{name} gave {got} as the gradient of input {i}, {input}"));
            let gradient = gradient.ok_or_else(|| wrong("nothing".into()))?;
            if gradient.shape() != &input.shape || gradient.dtype() == DType::U32 {
                return Err(wrong(gradient.spec().to_string()));
            }
            if !gradient.device().same(&self.device) {
                return Err(wrong(format!("a tensor on {}", gradient.device())));
            }
            grads.accumulate(i, gradient.to_dtype(input.dtype)?)?;
        }
        Ok(())
    }
}
