//! Writes x into a larger tensor: y[i0, ..] = x[(i0 - start0) / step0, ..] where that is an integer in range, else a
//! fill value. Or accumulates: y[i0, ..] += x[..].

use super::*;
use crate::gpu::{Limits, Operand, Param, Plan, buffer, param};
use crate::shader;
use rayon::prelude::*;

/// The elements of a dimension of y that are x's: `count` of `size`, from `start` on, `step` apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Span {
    size: usize,
    start: usize,
    count: usize,
    step: usize,
}

impl Span {
    pub fn new(size: usize, start: usize, count: usize, step: usize) -> Span {
        // The step that is never taken would not fit 32 bits.
        Span { size, start, count, step: if count > 1 { step } else { 1 } }
    }

    /// Of the larger tensor.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether every element is x's.
    fn is_whole(&self) -> bool {
        self.count == self.size && self.start == 0
    }

    /// The index of x's element at element `i`, if any.
    fn index(&self, i: usize) -> Option<usize> {
        let from_start = i.checked_sub(self.start)?;
        (from_start.is_multiple_of(self.step) && from_start / self.step < self.count).then_some(from_start / self.step)
    }
}

/// x -> y, whose dimensions are the sizes of the spans.
#[derive(Clone)]
pub(super) struct Window {
    pub name: &'static str,
    pub spans: Vec<Span>,
    /// The fill value.
    pub value: f32,
    /// Adds to the gradient y.
    pub accumulate: bool,
}

impl Window {
    /// Into a tensor of this shape, along one dimension; 0 elsewhere.
    pub fn at_dim(name: &'static str, shape: &Shape, dim: usize, span: Span) -> Window {
        let whole = |(i, &size): (usize, &usize)| if i == dim { span } else { Span::new(size, 0, size, 1) };
        Window { name, spans: shape.iter().enumerate().map(whole).collect(), value: 0.0, accumulate: false }
    }

    /// The inverse: x from y.
    pub fn copy(&self, name: &'static str) -> StridedCopy {
        let sizes: Vec<usize> = self.spans.iter().map(|span| span.size).collect();
        let strides = strides(&sizes);
        let starts = self.spans.iter().zip(&strides).map(|(span, stride)| span.start.wrapping_mul(*stride as usize));
        let offset = starts.fold(0, usize::wrapping_add);
        let axis = |(span, stride): (&Span, &isize)| (span.count, stride.wrapping_mul(span.step as isize));
        let axes = self.spans.iter().zip(&strides).map(axis);
        StridedCopy::new(name, axes, offset)
    }

    /// As few spans as describe it: those that are whole are joined with those before them. Never empty.
    fn joined(&self) -> Vec<Span> {
        let mut joined: Vec<Span> = Vec::new();
        for span in &self.spans {
            match joined.last_mut() {
                Some(outer) if span.is_whole() && outer.step == 1 => {
                    let [size, start, count] =
                        [outer.size, outer.start, outer.count].map(|n| n.wrapping_mul(span.size));
                    *outer = Span { size, start, count, step: 1 };
                }
                _ => joined.push(*span),
            }
        }
        if joined.is_empty() {
            joined.push(Span::new(1, 0, 1, 1));
        }
        joined
    }

    /// `place` writes or adds an element.
    fn put<T: Copy + Send + Sync>(&self, x: &[T], y: &mut [T], value: T, place: impl Fn(&mut T, T) + Sync) {
        let spans = self.joined();
        let (inner, outer) = spans.split_last().expect("spans are never empty");
        y.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, mut y)| {
            let mut start = chunk * CHUNK;
            while !y.is_empty() {
                let (within, row) = (start % inner.size, start / inner.size);
                let (run, others) = y.split_at_mut((inner.size - within).min(y.len()));
                start += run.len();
                y = others;
                if !self.accumulate {
                    run.fill(value);
                }
                let Some(row) = row_of(outer, row) else { continue };
                let x = &x[row * inner.count..][..inner.count];
                // The elements of the run from the first that is x's on.
                let skipped = within.saturating_sub(inner.start).div_ceil(inner.step);
                let first = inner.start + skipped * inner.step;
                let (Some(x), Some(run)) = (x.get(skipped..), run.get_mut(first - within..)) else { continue };
                run.iter_mut().step_by(inner.step).zip(x).for_each(|(y, x)| place(y, *x));
            }
        });
    }
}

/// The index of x's row at row `row` of y, if any.
fn row_of(outer: &[Span], mut row: usize) -> Option<usize> {
    let (mut number, mut scale) = (0, 1);
    for span in outer.iter().rev() {
        number += span.index(row % span.size)? * scale;
        row /= span.size;
        scale *= span.count;
    }
    Some(number)
}

impl Kernel for Window {
    fn name(&self) -> &'static str {
        self.name
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(self.spans.iter().map(|span| span.size).collect::<Vec<_>>(), inputs[0].dtype)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        match self.accumulate {
            true => Cost { flops: inputs[0].shape.elements() as f64, bytes: 3.0 * inputs[0].size_bytes() as f64 },
            false => streaming_cost(0, inputs, outputs),
        }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        match (inputs[0].spec.dtype, self.accumulate) {
            (DType::U32, _) => self.put(inputs[0].u32(), outputs[0].u32(), self.value as u32, |y, x| *y = x),
            (_, true) => self.put(inputs[0].f32(), outputs[0].f32(), self.value, |y, x| *y += x),
            (_, false) => self.put(inputs[0].f32(), outputs[0].f32(), self.value, |y, x| *y = x),
        }
    }

    fn gpu(&self, inputs: &[&Spec], outputs: &[&Spec], _: &Limits) -> Plan {
        const NAMES: [[&str; 4]; MAX_RANK] = [
            ["size0", "start0", "count0", "step0"],
            ["size1", "start1", "count1", "step1"],
            ["size2", "start2", "count2", "step2"],
            ["size3", "start3", "count3", "step3"],
            ["size4", "start4", "count4", "step4"],
            ["size5", "start5", "count5", "step5"],
        ];
        let (mut spans, mut len) = (self.joined(), outputs[0].shape.elements());
        if len == 0 {
            return Plan::default(); // whose other dimensions need not fit parameters
        }
        let inner = spans.last_mut().expect("spans are never empty");
        let by_four = inner.step == 1 && [inner.size, inner.start, inner.count].iter().all(|n| n.is_multiple_of(4));
        if by_four {
            *inner = Span { size: inner.size / 4, start: inner.start / 4, count: inner.count / 4, step: 1 };
            len /= 4;
        }
        let stepped = spans.iter().any(|span| span.step > 1);
        let of_span = |(names, span): (&[&'static str; 4], &Span)| {
            let values = [span.size, span.start, span.count, span.step];
            names.iter().zip(values).map(|(name, value)| param(name, value)).collect::<Vec<Param>>()
        };
        let dtype = inputs[0].dtype;
        let element = dtype.wgsl(if by_four { 4 } else { 1 });
        Plan::one(Launch {
            shader: shader!(window),
            values: vec![
                ("type", element.into()),
                ("T", dtype.name().into()),
                ("rank", spans.len().into()),
                ("stepped", stepped.into()),
                ("accumulate", self.accumulate.into()),
            ],
            buffers: vec![buffer("x", element, Operand::Input(0)), buffer("result", element, Operand::Output(0))],
            params: [
                vec![param("len", len), param("value", self.value)],
                NAMES.iter().zip(&spans).flat_map(of_span).collect(),
            ]
            .concat(),
            workgroups: len.div_ceil(256),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_dimensions_are_joined_with_those_before() {
        let joined =
            |spans: &[Span]| Window { name: "", spans: spans.to_vec(), value: 0.0, accumulate: false }.joined();
        let whole = |size| Span::new(size, 0, size, 1);
        assert_eq!(joined(&[whole(2), whole(3), whole(1)]), [whole(6)]);
        assert_eq!(joined(&[Span::new(5, 1, 2, 1), whole(3)]), [Span::new(15, 3, 6, 1)]);
        let stepped = [whole(2), Span::new(5, 1, 2, 2), whole(3)];
        assert_eq!(joined(&stepped), stepped);
        assert_eq!(joined(&[]), [whole(1)]);
    }

    #[test]
    fn a_step_that_is_never_taken_is_one() {
        assert_eq!(Span::new(5, 1, 1, usize::MAX), Span { size: 5, start: 1, count: 1, step: 1 });
    }
}
