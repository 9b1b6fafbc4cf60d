//! Shapes and element types.

use super::quantized::Parts;
use std::fmt;
use std::ops::Deref;

/// What an element is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DType {
    #[default]
    F32,
    F16,
    U32,
    /// Blocks of 8 or 4 bits (`quantized.rs`): frozen weights, matrices (N, K).
    Q8_0,
    Q4_0,
    Nf4,
}

impl DType {
    /// "f32", "f16", "u32", "q8_0", "q4_0" or "nf4".
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::U32 => "u32",
            DType::Q8_0 => "q8_0",
            DType::Q4_0 => "q4_0",
            DType::Nf4 => "nf4",
        }
    }

    /// The WGSL type of `lanes` elements, one or four: `f16`, `vec4<f16>`.
    pub fn wgsl(self, lanes: usize) -> &'static str {
        match (self, lanes == 4) {
            (DType::Q8_0 | DType::Q4_0 | DType::Nf4, _) => "u32",
            (_, false) => self.name(),
            (DType::F32, true) => "vec4<f32>",
            (DType::F16, true) => "vec4<f16>",
            (DType::U32, true) => "vec4<u32>",
        }
    }

    /// Bytes of one element; of quantized types, which have no single ones, 1.
    pub fn size_bytes(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::F16 => 2,
            DType::Q8_0 | DType::Q4_0 | DType::Nf4 => 1,
        }
    }
}

/// The length of each dimension, outermost first; the empty shape is a scalar.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// How many elements there are; `usize::MAX` if they cannot be counted: no tensor has so many.
    pub fn elements(&self) -> usize {
        self.0.iter().fold(1, |product, dim| product.saturating_mul(*dim))
    }

    /// The last dimension, 1 for a scalar.
    pub fn last_dim(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// The product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.0.iter().rev().skip(1).fold(1, |product, dim| product.saturating_mul(*dim))
    }

    /// This shape with another last dimension.
    pub fn with_last_dim(&self, last: usize) -> Shape {
        let mut dims = self.0.clone();
        match dims.last_mut() {
            Some(dim) => *dim = last,
            None => dims.push(last),
        }
        Shape(dims)
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Shape {
        Shape(dims)
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape(dims.to_vec())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape(dims.to_vec())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let dims: Vec<String> = self.0.iter().map(usize::to_string).collect();
        write!(f, "({})", dims.join(", "))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Shape and element type: all that there is to know about a tensor before its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub shape: Shape,
    pub dtype: DType,
}

impl Spec {
    pub fn new(shape: impl Into<Shape>, dtype: DType) -> Spec {
        Spec { shape: shape.into(), dtype }
    }

    /// Bytes of all elements; `usize::MAX` if they cannot be counted.
    pub fn size_bytes(&self) -> usize {
        match self.dtype.is_quantized() {
            true => size_of::<u32>() * Parts::of(self.dtype, self.shape.elements()).end,
            false => self.shape.elements().saturating_mul(self.dtype.size_bytes()),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {}", self.dtype.name(), self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_too_large_to_count_saturates() {
        let huge = Shape::from([usize::MAX, 3]);
        assert_eq!((huge.elements(), Spec::new(huge.clone(), DType::F32).size_bytes()), (usize::MAX, usize::MAX));
        // Wrapped, these would be 0 elements, and 4 bytes.
        assert_eq!(Shape::from([1 << 32, 1 << 32]).elements(), usize::MAX);
        assert_eq!(Spec::new([(1 << 62) + 1], DType::F32).size_bytes(), usize::MAX);
        assert_eq!(Shape::from([usize::MAX, usize::MAX, 0]).elements(), 0);
        assert_eq!(Shape::from([usize::MAX, 2, 1]).rows(), usize::MAX);
    }
}
