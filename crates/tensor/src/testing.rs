//! The one comparison of numbers that tests and `bench ops` use: `torch.testing.assert_close`, but what is not finite
//! never agrees, not even with the same, because a test that compares NaN with NaN compares nothing.

#[cfg(feature = "testing")]
pub mod buffers;
#[cfg(feature = "testing")]
pub mod faults;

#[cfg(feature = "testing")]
use std::fmt::Display;

/// The largest |got - want| as a part of what is allowed: above 1 they disagree. `allowed` gets the index of an
/// element and its value in `want`. Infinite if the lengths differ or a number is not finite.
pub fn worst_error<G, W>(got: &[G], want: &[W], allowed: impl Fn(usize, f64) -> f64) -> f64
where
    G: Copy + Into<f64>,
    W: Copy + Into<f64>,
{
    if got.len() != want.len() {
        return f64::INFINITY;
    }
    let pairs = got.iter().zip(want).enumerate();
    let errors = pairs.map(|(i, (&got, &want))| error(got.into(), want.into(), allowed(i, want.into())));
    errors.fold(0.0, f64::max)
}

/// |got - want| as a part of what is allowed: a number or infinity, never NaN, which a maximum would pass over.
fn error(got: f64, want: f64, allowed: f64) -> f64 {
    let difference = (got - want).abs();
    if !difference.is_finite() || !allowed.is_finite() {
        f64::INFINITY
    } else if difference == 0.0 {
        0.0
    } else {
        difference / allowed.max(0.0)
    }
}

/// What is wrong with `got`, if an element is further from `want` than `allowed` (see [`worst_error`]): how many
/// elements, the first and the worst of them.
pub fn difference<G, W>(got: &[G], want: &[W], allowed: impl Fn(usize, f64) -> f64) -> Option<String>
where
    G: Copy + Into<f64>,
    W: Copy + Into<f64>,
{
    if got.len() != want.len() {
        return Some(format!("{} elements, not {}", got.len(), want.len()));
    }
    let of = |i: usize| (got[i].into(), want[i].into());
    let error = |i: usize| error(of(i).0, of(i).1, allowed(i, of(i).1));
    let bad: Vec<usize> = (0..got.len()).filter(|&i| error(i) > 1.0).collect();
    let worst = *bad.iter().max_by(|&&a, &&b| error(a).total_cmp(&error(b)))?;
    let describe = |i: usize| {
        let (got, want) = of(i);
        format!("element {i} is {got:.7e}, not {want:.7e} (allowed {:.1e})", allowed(i, want))
    };
    let (first, worst) = (describe(bad[0]), describe(worst));
    Some(format!("{} of {} elements: first {first}; worst {worst}", bad.len(), got.len()))
}

/// Fails unless both have the same length, every number is finite, and |got - want| <= `atol` + `rtol` |want|.
///
/// # Panics
/// If not. The message begins with `what`.
#[cfg(feature = "testing")]
#[track_caller]
pub fn assert_close<G, W>(what: impl Display, got: &[G], want: &[W], atol: f64, rtol: f64)
where
    G: Copy + Into<f64>,
    W: Copy + Into<f64>,
{
    assert_within(what, got, want, |_, want| atol + rtol * want.abs());
}

/// [`assert_close`] with what is allowed of each element: see [`worst_error`].
///
/// # Panics
/// If an element is further off.
#[cfg(feature = "testing")]
#[track_caller]
pub fn assert_within<G, W>(what: impl Display, got: &[G], want: &[W], allowed: impl Fn(usize, f64) -> f64)
where
    G: Copy + Into<f64>,
    W: Copy + Into<f64>,
{
    if let Some(difference) = difference(got, want, allowed) {
        panic!("{what}: {difference}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;

    fn close(got: &[f32], want: &[f32]) -> bool {
        let allowed = |_, want: f64| 0.1 + 0.01 * want.abs();
        let close = difference(got, want, allowed).is_none();
        assert_eq!(worst_error(got, want, allowed) <= 1.0, close, "{got:?} {want:?}");
        close
    }

    #[test]
    fn what_is_allowed_is_atol_and_rtol_of_the_wanted() {
        assert!(close(&[], &[]));
        assert!(close(&[0.09, 101.0, -101.0], &[0.0, 100.0, -100.0]));
        assert!(!close(&[0.11], &[0.0]) && !close(&[101.2], &[100.0]) && !close(&[-101.2], &[-100.0]));
        assert!(!close(&[100.0], &[-100.0]));
    }

    #[test]
    fn what_is_not_finite_never_agrees() {
        for bad in [NAN, INF, -INF] {
            assert!(!close(&[1.0, bad], &[1.0, 1.0]), "{bad}");
            assert!(!close(&[1.0, 1.0], &[1.0, bad]), "{bad}");
            assert!(!close(&[1.0, bad], &[1.0, bad]), "{bad}");
            // Before and after a finite error.
            assert!(worst_error(&[bad, 3.0], &[1.0f32, 1.0], |_, _| 1.0).is_infinite(), "{bad}");
            assert!(worst_error(&[3.0, bad], &[1.0f32, 1.0], |_, _| 1.0).is_infinite(), "{bad}");
            // Nor does a tolerance that allows everything.
            assert!(difference(&[1.0f32], &[2.0f32], |_, _| f64::from(bad)).is_some(), "{bad}");
        }
    }

    #[test]
    fn lengths_must_be_equal() {
        assert!(!close(&[1.0], &[1.0, 1.0]) && !close(&[1.0, 1.0], &[1.0]) && !close(&[], &[1.0]));
    }

    #[test]
    fn without_tolerance_only_the_same_number_agrees() {
        assert!(difference(&[1.0f32, 0.0], &[1.0f32, -0.0], |_, _| 0.0).is_none());
        assert!(difference(&[1.0f32], &[1.000_000_1f32], |_, _| 0.0).is_some());
        assert!(difference(&[1.0f32], &[2.0f32], |_, _| -1.0).is_some());
    }

    #[test]
    #[should_panic(
        expected = "sums: 2 of 4 elements: first element 1 is 2.0000000e0, not 1.0000000e0 (allowed 5.0e-1); \
                               worst element 3 is NaN, not 1.0000000e0"
    )]
    fn the_message_names_the_first_and_the_worst() {
        assert_close("sums", &[1.0f32, 2.0, 1.0, NAN], &[1.0f64; 4], 0.5, 0.0);
    }
}
