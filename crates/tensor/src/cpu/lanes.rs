//! Reductions of slices in sixteen lanes, each over every sixteenth element: the compiler keeps the order of
//! floating-point additions, so a single running sum would not vectorize. The order depends on the length alone.
//!
//! They are made for [`vectorized`](super::vectorized) and vectorize because the lanes end in memory: a function that
//! is not inlined adds them up. (Inlined, the compiler cuts the lanes into pairs for the sake of that last sum.)

const LANES: usize = 16;

/// Combines the lanes pair by pair.
#[inline(always)]
fn combine(lanes: &[f32; LANES], both: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = *lanes;
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] = both(lanes[i], lanes[i + width]);
        }
    }
    lanes[0]
}

#[inline(never)]
pub(super) fn total(lanes: &[f32; LANES]) -> f32 {
    combine(lanes, |a, b| a + b)
}

#[inline(never)]
fn largest(lanes: &[f32; LANES]) -> f32 {
    combine(lanes, |a, b| if a > b { a } else { b })
}

#[inline(never)]
fn smallest(lanes: &[f32; LANES]) -> f32 {
    combine(lanes, |a, b| if a < b { a } else { b })
}

#[inline(never)]
fn all_together(lanes: &[f32; LANES]) -> f32 {
    combine(lanes, |a, b| a * b)
}

/// Element `i` of each.
#[inline(always)]
fn at<const N: usize>(slices: &[impl AsRef<[f32]>; N], i: usize) -> [f32; N] {
    let mut values = [0.0; N];
    for (value, slice) in values.iter_mut().zip(slices) {
        *value = slice.as_ref()[i];
    }
    values
}

/// The sum of `term` over what stands at the same place of several slices, the first of which says how far.
#[inline(always)]
pub fn sum_of<const N: usize>(slices: [&[f32]; N], term: impl Fn([f32; N]) -> f32) -> f32 {
    let n = slices[0].len();
    let mut lanes = [0.0; LANES];
    // Plain loops over the slices: `map` of an array is a call that may not be inlined.
    for i in (0..n / LANES).map(|i| i * LANES) {
        let mut chunks = [[0.0; LANES]; N];
        for (chunk, slice) in chunks.iter_mut().zip(&slices) {
            chunk.copy_from_slice(&slice[i..i + LANES]);
        }
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(at(&chunks, lane));
        }
    }
    let mut rest = 0.0;
    for i in n / LANES * LANES..n {
        rest += term(at(&slices, i));
    }
    total(&lanes) + rest
}

/// x = f(x), and the sum of the new values.
#[inline(always)]
pub fn map_and_sum(x: &mut [f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, others) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for (sum, x) in lanes.iter_mut().zip(chunk) {
            *x = f(*x);
            *sum += *x;
        }
    }
    let mut rest = 0.0;
    for x in others {
        *x = f(*x);
        rest += *x;
    }
    total(&lanes) + rest
}

/// The largest element, -infinity if there is none. Unspecified if one is NaN.
#[inline(always)]
pub fn maximum(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    rest.iter().fold(largest(&lanes), |a, b| a.max(*b))
}

/// The smallest element, infinity if there is none. Unspecified if one is NaN.
#[inline(always)]
pub fn minimum(x: &[f32]) -> f32 {
    let mut lanes = [f32::INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = if *x < *lane { *x } else { *lane };
        }
    }
    rest.iter().fold(smallest(&lanes), |a, b| a.min(*b))
}

/// The product of `factor` over the elements.
#[inline(always)]
pub fn product_of(x: &[f32], factor: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [1.0; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane *= factor(*x);
        }
    }
    rest.iter().fold(all_together(&lanes), |product, x| product * factor(*x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_counts_once_whatever_the_length() {
        for n in 0..50 {
            let x: Vec<f32> = (0..n).map(|i| (i * 7 % n) as f32).collect();
            let (sum, squares): (f32, f32) = (x.iter().sum(), x.iter().map(|x| x * x).sum());
            assert_eq!(sum_of([&x], |[x]| x), sum, "{n}");
            assert_eq!(sum_of([&x, &x], |[a, b]| a * b), squares, "{n}");
            assert_eq!(maximum(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max), "{n}");
            assert_eq!(minimum(&x), x.iter().copied().fold(f32::INFINITY, f32::min), "{n}");
            // Powers of two, whose products are exact.
            let (powers, product) =
                (x.iter().map(|x| 0.5 + (x % 3.0) * 0.5), |all: &[f32]| all.iter().product::<f32>());
            let powers: Vec<f32> = powers.map(|x| if x == 1.5 { 2.0 } else { x }).collect();
            assert_eq!(product_of(&powers, |x| 2.0 * x) / product(&powers), 2.0f32.powi(n), "{n}");
            let mut doubled = x.clone();
            assert_eq!(map_and_sum(&mut doubled, |x| 2.0 * x), 2.0 * sum, "{n}");
            assert!(doubled.iter().zip(&x).all(|(d, x)| *d == 2.0 * x), "{n}");
        }
    }
}
