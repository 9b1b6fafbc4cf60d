//! Exponential functions as plain arithmetic, so that loops over them vectorize (the standard library's do not).

/// e^x, relative error below 3e-7. 0 below -86.99, infinity above 88.72.
///
/// x = k ln 2 + r with |r| <= ln 2 / 2; a polynomial for e^r (Cephes, `expf`); 2^k by its exponent bits. Without
/// comparisons: NaN propagates, and the limits are those of the exponent.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4; // its last bits are zero, so k * LN2_HIGH is exact
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.5, 89.0); // k from -126 to 128
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = (clamped - k * LN2_HIGH) - k * LN2_LOW;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let e_r = p * r * r + r + 1.0;
    // 2^(k - 1), which is 0 for the smallest k, and then twice that, because 2^128 is no float while e^88.7 is.
    let half = f32::from_bits((shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(126)) << 23);
    e_r * half * 2.0
}

/// 1 / (1 + e^-x), relative error below 1e-6.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// tanh x, absolute error below 3e-7.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    // Beyond 10 it is 1 to the last bit.
    let e = exp(2.0 * x.clamp(-10.0, 10.0));
    let y = (e - 1.0) / (e + 1.0);
    // Below 0.01 the difference above cancels; two terms of the series are exact to 1e-11.
    if x.abs() < 0.01 { x - x * x * x / 3.0 } else { y }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> impl Iterator<Item = f32> {
        (-900_000..=900_000).map(|i| i as f32 * 1e-4)
    }

    #[test]
    fn exp_keeps_its_error_bound() {
        for x in points().filter(|x| (-86.9..88.7).contains(x)) {
            let exact = f64::from(x).exp();
            let error = ((f64::from(exp(x)) - exact) / exact).abs();
            assert!(error < 3e-7, "exp({x}) is off by {error:e}");
        }
    }

    #[test]
    fn exp_handles_the_extremes() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(-87.1), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(88.73), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_and_sigmoid_keep_their_error_bounds() {
        for x in points() {
            let error = (f64::from(tanh(x)) - f64::from(x).tanh()).abs();
            assert!(error < 3e-7, "tanh({x}) is off by {error:e}");
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            let error = (f64::from(sigmoid(x)) - exact).abs();
            assert!(error < 1e-6 * exact.max(1e-30), "sigmoid({x}) is off by {error:e}");
        }
    }
}
