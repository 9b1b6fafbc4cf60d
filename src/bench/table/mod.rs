//! What `bench ops` measures: every op of `ops/cases/`, forward and backward, and the optimizers, at the sizes of a
//! model worth training.

mod elementwise;
mod images;
mod layers;
mod losses;
mod matmul;
mod optimizers;
mod row;
mod sizes;

pub use matmul::gemms;
#[cfg(feature = "cli")]
pub use matmul::step_gemms;
pub use row::Row;
pub(super) use row::Work;
pub use sizes::Sizes;

/// Kernels that are none of the op's own: one adds the gradient of a view to that of its leaf, one makes f16 of f32.
pub(super) const AROUND_THE_OP: [&str; 2] = ["add_gradient", "cast"];

const SEED: u64 = 7;

/// Every row.
pub fn table(s: &Sizes) -> Vec<Row> {
    let parts = [
        matmul::matmul,
        layers::linear,
        layers::attention,
        layers::norms,
        layers::others,
        images::recurrent,
        images::images,
        losses::losses,
        losses::further_losses,
        elementwise::elementwise,
        elementwise::movement,
        elementwise::streams,
        optimizers::optimizers,
    ];
    parts.iter().flat_map(|part| part(s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Limits;
    use crate::ops::cases;
    use crate::tensor::DType;
    use crate::tensor::DryRun;
    use crate::{Device, Tensor};
    use std::collections::BTreeSet;

    #[test]
    fn every_kernel_of_the_table_of_ops_is_measured() {
        let names = |body: &dyn Fn(&Device)| -> BTreeSet<&'static str> {
            let dry_run = DryRun::new(Limits { f16: true, ..Limits::WEBGPU_DEFAULT });
            body(&Device::DryRun(dry_run.clone()));
            dry_run.take_plans().into_iter().map(|(name, _)| name).collect()
        };
        let tested = names(&|device| {
            for case in cases::all() {
                let leaf = |x: &Tensor| if x.dtype() == DType::F32 { x.requires_grad().unwrap() } else { x.clone() };
                let inputs: Vec<Tensor> = case.draw(device, 7).unwrap().iter().map(leaf).collect();
                let y = (case.apply)(&inputs).unwrap();
                y.backward_with(&y.detach()).unwrap();
            }
        });
        let measured = names(&|device| {
            for row in table(&Sizes::SMALL) {
                row.prepare(device).unwrap()().unwrap();
            }
        });
        let missing: Vec<_> = tested.difference(&measured).collect();
        assert!(missing.is_empty(), "src/bench/table has no row that runs {missing:?}");
        for name in ["adamw", "adam", "sgd", "grad_norm"] {
            assert!(measured.contains(name), "{name} is missing in {measured:?}");
        }
    }
}
