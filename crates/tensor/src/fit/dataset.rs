//! Data sets: indexed samples on the host.

use crate::error::panic_message;
use crate::tensor::Spec;
use crate::{DType, Device, Error, Result, Shape, Tensor};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An array on the host: one of the tensors of a sample or a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    spec: Spec,
    /// Row-major, little-endian.
    bytes: Vec<u8>,
}

impl Array {
    /// An f32 array from values in row-major order.
    ///
    /// # Errors
    /// If the number of values differs from that of `shape`.
    pub fn f32(values: &[f32], shape: impl Into<Shape>) -> Result<Array> {
        Array::new(bytemuck::cast_slice(values), Spec::new(shape, DType::F32))
    }

    /// A u32 array (ids or classes) from values in row-major order.
    ///
    /// # Errors
    /// If the number of values differs from that of `shape`.
    pub fn u32(values: &[u32], shape: impl Into<Shape>) -> Result<Array> {
        Array::new(bytemuck::cast_slice(values), Spec::new(shape, DType::U32))
    }

    fn new(bytes: &[u8], spec: Spec) -> Result<Array> {
        if bytes.len() != spec.size_bytes() {
            let got = format!("{} elements", bytes.len() / spec.dtype.size_bytes());
            return Err(Error::Shape { op: "array", expected: format!("the elements of {spec}"), got });
        }
        Ok(Array { bytes: bytes.to_vec(), spec })
    }

    /// Shape and element type.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Copies the array to a device.
    ///
    /// # Errors
    /// If the device runs out of memory.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        Tensor::from_bytes(&self.bytes, self.spec.clone(), device)
    }

    /// Arrays of this kind along a new first dimension.
    fn stacked<'a>(Spec { shape, dtype }: &Spec, arrays: impl Iterator<Item = &'a Array>) -> Array {
        let parts: Vec<&[u8]> = arrays.map(|array| &array.bytes[..]).collect();
        let shape = [&[parts.len()][..], shape].concat();
        Array { spec: Spec::new(shape, *dtype), bytes: parts.concat() }
    }
}

/// Indexed samples, which several threads may read at the same time.
pub trait Dataset: Send + Sync {
    /// How many samples there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sample number `index`, below [`Dataset::len`]: as many arrays, of the same shapes and types, as every other.
    ///
    /// # Errors
    /// Whatever keeps it from being read: the loader's error names the index beside it.
    fn get(&self, index: usize) -> Result<Vec<Array>>;
}

/// A data set in memory.
pub struct Arrays(Vec<Array>);

impl Arrays {
    /// Sample i is index i of each array's first dimension: images (N, C, H, W) and classes (N) give an image (C, H, W)
    /// and its class ().
    ///
    /// # Errors
    /// If there are no arrays, or their first dimensions differ.
    pub fn new(arrays: Vec<Array>) -> Result<Arrays> {
        let lengths: Vec<Option<usize>> = arrays.iter().map(|array| array.spec.shape.first().copied()).collect();
        match lengths.first() {
            Some(Some(len)) if lengths.iter().all(|other| *other == Some(*len)) => Ok(Arrays(arrays)),
            _ => Err(Error::Shape {
                op: "data set",
                expected: "arrays of one and the same first dimension".into(),
                got: arrays.iter().map(|array| array.spec.to_string()).collect::<Vec<_>>().join(" and "),
            }),
        }
    }
}

impl Dataset for Arrays {
    fn len(&self) -> usize {
        self.0[0].spec.shape[0]
    }

    fn get(&self, index: usize) -> Result<Vec<Array>> {
        let sample = |array: &Array| {
            let spec = Spec::new(&array.spec.shape[1..], array.spec.dtype);
            let size = spec.size_bytes();
            let bytes = array.bytes.get(index * size..(index + 1) * size);
            let bytes = bytes.ok_or_else(|| Error::Invalid(format!("there are {} samples", self.len())))?;
            Ok(Array { bytes: bytes.to_vec(), spec })
        };
        self.0.iter().map(sample).collect()
    }
}

/// These samples as one batch: each array along a new first dimension.
pub(super) fn collate(dataset: &dyn Dataset, indices: &[usize]) -> Result<Vec<Array>> {
    let samples = indices.iter().map(|&index| get(dataset, index)).collect::<Result<Vec<_>>>()?;
    let specs = |sample: &[Array]| sample.iter().map(|array| array.spec.clone()).collect::<Vec<Spec>>();
    let text = |specs: &[Spec]| match specs {
        [] => "no array".to_string(),
        specs => specs.iter().map(Spec::to_string).collect::<Vec<_>>().join(" and "),
    };
    let first = samples.first().map_or(vec![], |sample| specs(sample));
    for (&index, sample) in indices.iter().zip(&samples) {
        let own = specs(sample);
        if own.is_empty() || own != first {
            let message = format!("is {}, sample {} is {}", text(&own), indices[0], text(&first));
            return Err(Error::Sample { index, message });
        }
    }
    let column = |(i, spec)| Array::stacked(spec, samples.iter().map(|sample| &sample[i]));
    Ok(first.iter().enumerate().map(column).collect())
}

/// A sample; whatever goes wrong names its index.
fn get(dataset: &dyn Dataset, index: usize) -> Result<Vec<Array>> {
    // A thread that ends by a panic would leave whoever waits for its batch without a reason.
    let message = match catch_unwind(AssertUnwindSafe(|| dataset.get(index))) {
        Ok(Ok(sample)) => return Ok(sample),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("the data set panicked: {}", panic_message(&*panic)),
    };
    Err(Error::Sample { index, message })
}
