//! Devices, and what tensors are described by.

use super::{Defined, HUGE, LARGE, Refused, Row, zeros};
use rustyflow::tensor::{Gradient, Spec};
use rustyflow::{DType, Device, Error, Shape};

pub fn rows() -> Vec<Row> {
    vec![
        ("Device::open", Refused, |_| Device::open("tpu").map(drop)),
        ("Device::open", Refused, |_| Device::open("gpu:99").map(drop)),
        ("Device::same", Defined, |d| {
            assert!(d.same(d));
            Ok(())
        }),
        ("Device::begin_step", Defined, |d| {
            d.begin_step(true);
            d.begin_step(false);
            d.end_step()
        }),
        ("Device::time_kernels", Defined, |d| {
            d.time_kernels(false);
            d.submit()
        }),
        ("Device::profile", Refused, |d| d.profile(|| Err::<(), _>(Error::Invalid("by the body".into()))).map(drop)),
        ("DType::wgsl", Defined, |_| {
            DType::F16.wgsl(HUGE);
            Ok(())
        }),
        ("Shape::with_last_dim", Defined, |_| {
            Shape::from([]).with_last_dim(HUGE).with_last_dim(0).elements();
            Ok(())
        }),
        ("Spec::new", Defined, |_| {
            assert_eq!(Spec::new([HUGE, LARGE], DType::F16).size_bytes(), HUGE);
            Ok(())
        }),
        ("Gradient::new", Defined, |d| {
            let gradient = Gradient::new(zeros([0], d)?);
            gradient.zero_lazily();
            gradient.sum().map_or(Ok(()), |sum| sum.to_f32().map(drop))
        }),
        ("no_grad", Defined, |_| {
            rustyflow::tensor::no_grad(|| ());
            Ok(())
        }),
        ("set_grad_enabled", Defined, |_| {
            let before = rustyflow::tensor::set_grad_enabled(false);
            assert!(!rustyflow::tensor::set_grad_enabled(before));
            Ok(())
        }),
    ]
}
