//! The output of a LoRA adapter (Hu et al. 2021), added to a linear layer's. Shapes: y (..., N), x (..., K), a (R, K),
//! b (N, R), scales (N, R) -> (..., N).
//!
//! ```text
//! z = x a^T    b' = scales * b    result = y + z b'^T
//! dy = dresult    dz = dresult b'    dx = dz a    da = dz^T x    db = scales * (dresult^T z)
//! ```
//! y, x and a are all f32 or all f16, and so is b'; b, scales and the gradients of a and b are f32. R is much smaller
//! than K and N, so reading and writing y dominates; the sum overwrites y if no other tensor shares it.

use super::matmul::MatMul;
use super::*;
use crate::tensor::{AddInto, Grads, no_grad, record, run, run_into};

/// Inputs on the tape: y, x, a, b.
struct AddLowRank {
    /// (..., R)
    z: Tensor,
    /// b', (N, R).
    scaled: Tensor,
    scales: Tensor,
}

impl Op for AddLowRank {
    fn saves(&self) -> Saves {
        Saves { inputs: &[1, 2], outputs: &[] }
    }

    fn backward(&self, saved: &Saved, grad_output: &[Option<Tensor>], grads: &mut Grads) -> Result<()> {
        let Some(dy) = &grad_output[0] else { return Ok(()) };
        let (x, a) = (saved.input(1)?, saved.input(2)?);
        if grads.needs_grad(3) {
            let product = MatMul { trans_a: true, ..MatMul::default() };
            let db = grads.run_one(&product, &[&dy.as_rows(), &self.z.as_rows()])?;
            grads.accumulate(3, db.mul(&self.scales)?)?;
        }
        let dz = &grads.run_one(&MatMul { out: dy.dtype(), ..MatMul::default() }, &[dy, &self.scaled])?;
        let out = grads.dtype(2, a);
        let product = |accumulate| MatMul { trans_a: true, accumulate, out, ..MatMul::default() };
        grads.accumulate_with(2, &[&dz.as_rows(), &x.as_rows()], product)?;
        let out = grads.dtype(1, x);
        grads.accumulate_with(1, &[dz, a], |accumulate| MatMul { accumulate, out, ..MatMul::default() })?;
        grads.accumulate(0, dy.clone())
    }
}

impl Tensor {
    /// `self + x a^T (scales * b)^T` for this tensor (..., N), x (..., K), a (R, K), b (N, R) and `scales` (N, R). The
    /// scales get no gradient.
    ///
    /// # Errors
    /// If the shapes do not fit, y, x and a are not all f32 or all f16, or b or the scales are not f32.
    pub fn add_low_rank(self, x: &Tensor, a: &Tensor, b: &Tensor, scales: &Tensor) -> Result<Tensor> {
        const OP: &str = "add_low_rank";
        expect_dtype(OP, self.dtype(), &[x.spec(), a.spec()])?;
        expect_f32(OP, &[b.spec(), scales.spec()])?;
        let (n, k) = (self.shape().last_dim(), x.shape().last_dim());
        let fits = matches!((&a.shape()[..], &b.shape()[..]), (&[r, its_k], &[its_n, its_r])
            if r == its_r && its_k == k && its_n == n);
        let rows = |t: &Tensor| t.shape().len() >= 2 && t.shape().rows() == self.shape().rows();
        if !fits || scales.shape() != b.shape() || !rows(x) || x.shape().with_last_dim(n) != *self.shape() {
            let got = [&self, x, a, b, scales].map(|t| t.shape().to_string()).join(", ");
            return Err(shape_error(OP, "y (..., N), x (..., K), a (R, K), b (N, R) and scales (N, R)", got));
        }
        let scaled = no_grad(|| b.mul(scales)?.to_dtype(x.dtype()))?;
        let transposed = MatMul { trans_b: true, out: x.dtype(), ..MatMul::default() };
        let z = run(&transposed, &[x, a])?.remove(0);
        let sum = if self.owns_its_memory() {
            run_into(&MatMul { accumulate: true, ..transposed }, &[&z, &scaled], &[&self])?;
            self.detach()
        } else {
            let product = run(&transposed, &[&z, &scaled])?.remove(0);
            run_into(&AddInto { into: product.dtype() }, &[&self], &[&product])?;
            product
        };
        let op = AddLowRank { z, scaled, scales: scales.detach() };
        Ok(record(Box::new(op), &[&self, x, a, b], vec![sum]).remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn what_others_hold_stays_as_it_was() {
        for device in Device::for_tests() {
            let tensor = |values: &[f32], shape: [usize; 2]| Tensor::from_f32(values, shape, &device).unwrap();
            let (x, a) = (tensor(&[1.0, 2.0], [1, 2]), tensor(&[3.0, 4.0], [1, 2]));
            let (b, scales) = (tensor(&[1.0, 2.0], [2, 1]), tensor(&[0.5, 0.0], [2, 1]));
            let y = tensor(&[10.0, 20.0], [1, 2]);
            let added = |y: Tensor| y.add_low_rank(&x, &a, &b, &scales).unwrap().to_f32().unwrap();
            assert_eq!(added(y.clone()), [15.5, 20.0], "{device}");
            assert_eq!(y.to_f32().unwrap(), [10.0, 20.0], "{device}");
            assert_eq!(added(y), [15.5, 20.0], "{device}");
        }
    }
}
