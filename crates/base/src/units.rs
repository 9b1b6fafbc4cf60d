//! Readable numbers: three significant digits, a space before the unit, binary units of bytes. JSON and other
//! machine-readable files have exact numbers.

/// Significant digits.
const DIGITS: i32 = 3;

/// 1234567 as "1.23M", 999 as "999", 0.5 as "0.5".
pub fn count(number: f64) -> String {
    scaled(number, 1000.0, &["", "k", "M", "G", "T", "P"])
}

/// 136000000 as "130 MiB".
pub fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"])
}

/// Two unequal sizes with enough digits to tell them apart: exact bytes if rounding would hide the difference.
pub fn unequal_bytes(sizes: [u64; 2]) -> [String; 2] {
    let [a, b] = sizes.map(bytes);
    if a == b && sizes[0] != sizes[1] { sizes.map(|size| format!("{size} B")) } else { [a, b] }
}

/// "15.3k tokens/s"; "- tokens/s" if unknown.
pub fn tokens_per_s(rate: Option<f64>) -> String {
    format!("{} tokens/s", rate.map_or("-".into(), count))
}

/// A real number, such as a learning rate: "0.0004", "1.46", "3e-5".
pub fn number(x: f64) -> String {
    let rounded = format!("{x:.*e}", DIGITS as usize - 1);
    let Some((mantissa, exponent)) = rounded.split_once('e') else { return rounded };
    match exponent.parse::<i32>() {
        Ok(exponent @ -4..6) => without_zeros(&format!("{:.*}", (DIGITS - 1 - exponent).max(0) as usize, x)),
        _ => format!("{}e{exponent}", without_zeros(mantissa)),
    }
}

/// A loss in nats per token: "1.4700".
pub fn loss(loss: f64) -> String {
    format!("{loss:.4}")
}

/// "4.35", "12.2k"; "above 1e300" if the loss is too large.
pub fn perplexity(perplexity: f64) -> String {
    match perplexity {
        p if p.is_nan() => "NaN".into(),
        p if p > 1e300 => "above 1e300".into(),
        p if p < 1000.0 => format!("{p:.2}"),
        p if p < 1e18 => count(p),
        p => number(p),
    }
}

/// "59.1 s", "2 min 5 s", "3 h 20 min".
pub fn duration(seconds: f64) -> String {
    // Rounded first: 59.97 s are a minute.
    match seconds {
        s if s < 59.95 => format!("{} s", digits(s)),
        s if s < 3599.5 => format!("{} min {} s", s.round() as u64 / 60, s.round() as u64 % 60),
        s => format!("{} h {} min", s.round() as u64 / 3600, s.round() as u64 / 60 % 60),
    }
}

/// Three digits and the prefix of the unit: "47.1 TFLOP/s", "8.00 us".
pub fn si(value: f64, unit: &str) -> String {
    const PREFIXES: [(f64, &str); 9] = [
        (1e18, "E"),
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1.0, ""),
        (1e-3, "m"),
        (1e-6, "u"),
    ];
    if value < 1e-9 {
        return format!("0 {unit}");
    }
    // 999.5 would be rounded to the 1000 of the next prefix.
    let fits = PREFIXES.iter().find(|(size, _)| value >= 0.9995 * size);
    let (size, prefix) = fits.unwrap_or(&(1e-9, "n"));
    format!("{} {prefix}{unit}", digits(value / size))
}

/// The unit of a column of FLOP rates, by the largest of them, and its size.
pub fn flop_rate_unit(largest: f64) -> (&'static str, f64) {
    if largest < 0.9995e12 { ("GFLOP/s", 1e9) } else { ("TFLOP/s", 1e12) }
}

/// The nearest short decimal: 3e-5 instead of the product 2.9999999999999997e-5.
pub fn decimal(x: f64) -> f64 {
    format!("{x:.12e}").parse().unwrap_or(x)
}

/// The shortest decimal that is this f32: 1e-5 instead of 9.999999747378752e-6.
pub fn decimal_of_f32(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// The shortest TOML float that parses to the same number: "0.1", "3e-4", "1e-8", "100.0"; with an exponent below
/// 0.001.
pub fn toml_float(x: f64) -> String {
    match x.abs() {
        _ if x.is_nan() => "nan".into(),
        size if size > 0.0 && size < 1e-3 => format!("{x:e}"),
        // With the `.0` without which it would be an integer of TOML.
        _ => format!("{x:?}"),
    }
}

/// In the largest unit that leaves at least one.
fn scaled(number: f64, base: f64, units: &[&str]) -> String {
    // What rounds to the base is one of the next unit.
    let rounds_up = |value: f64| value >= base - if base == 1000.0 { 0.5 } else { 0.0 };
    let (mut value, mut unit) = (number, 0);
    while rounds_up(value.abs()) && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let shown = if unit == 0 && value.fract() == 0.0 { format!("{value:.0}") } else { digits(value) };
    format!("{shown}{}", units[unit])
}

/// A number of a table: "0.0592", "1.20", "12.3", "1023".
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v < 0.9995 => number(value),
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn without_zeros(digits: &str) -> String {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.').into() } else { digits.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_three_digits_and_a_space_before_what_is_counted() {
        let shown =
            [0.0, 7.0, 0.53, 999.0, 999.6, 1234.0, 15_342.0, 51_000.0, 2_442_240.0, 134_515_008.0, 2e15].map(count);
        let expected = ["0", "7", "0.53", "999", "1.00k", "1.23k", "15.3k", "51.0k", "2.44M", "135M", "2.00P"];
        assert_eq!(shown, expected);
        assert_eq!(tokens_per_s(Some(15_342.0)), "15.3k tokens/s");
        assert_eq!(tokens_per_s(None), "- tokens/s");
    }

    #[test]
    fn bytes_have_binary_units() {
        let shown = [0, 1023, 1024, 128 << 20, 5_309_207 << 20, 137_116_000_000].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "128 MiB", "5.06 TiB", "128 GiB"]);
        assert_eq!(unequal_bytes([2049 << 10, 2 << 20]), ["2098176 B", "2097152 B"]);
        assert_eq!(unequal_bytes([3 << 20, 2 << 20]), ["3.00 MiB", "2.00 MiB"]);
    }

    #[test]
    fn numbers_of_tables_have_three_digits_at_any_size() {
        let shown = [0.0, 0.000_123_4, 0.0592, 0.5, 0.9997, 1.2, 54.106, 172.3, 1e6 / 3.0].map(digits);
        assert_eq!(shown, ["0", "0.000123", "0.0592", "0.5", "1.00", "1.20", "54.1", "172", "333333"]);
        assert_eq!([59.2e9, 1.0e12].map(flop_rate_unit), [("GFLOP/s", 1e9), ("TFLOP/s", 1e12)]);
    }

    #[test]
    fn units_have_the_prefix_of_their_size() {
        let shown = [0.0, 8e-6, 6.85e9, 1.31e13, 9.996e14, 1.31e19].map(|flops| si(flops, "FLOP"));
        assert_eq!(shown, ["0 FLOP", "8.00 uFLOP", "6.85 GFLOP", "13.1 TFLOP", "1.00 PFLOP", "13.1 EFLOP"]);
    }

    #[test]
    fn real_numbers_have_three_digits_without_zeros_at_their_end() {
        let shown = [0.0, 1.46, 0.123456, 2.9999999999999997e-5, 0.0004000045, 1e-3, 12.0, 1234.5, 1.2345e9, -0.25];
        let expected = ["0", "1.46", "0.123", "3e-5", "0.0004", "0.001", "12", "1234", "1.23e9", "-0.25"];
        assert_eq!(shown.map(number), expected);
        assert_eq!([f64::NAN, f64::INFINITY].map(number), ["NaN", "inf"]);
        assert_eq!(decimal(2.9999999999999997e-5), 3e-5);
        assert_eq!([1e-5_f32, 1e-6, 0.25, 1e6].map(decimal_of_f32), [1e-5, 1e-6, 0.25, 1e6]);
    }

    #[test]
    fn floats_of_toml_are_short_and_read_back_to_the_bit() {
        let shown = [0.1, 3e-4, 1e-8, 1e-3, 0.0, -2.5e-5, 100.0, 1e300, f64::NAN, f64::INFINITY].map(toml_float);
        assert_eq!(shown, ["0.1", "3e-4", "1e-8", "0.001", "0.0", "-2.5e-5", "100.0", "1e300", "nan", "inf"]);
        // All magnitudes, from subnormal ones on: the bits of a linear congruential generator.
        let mut bits = 1_u64;
        let random = std::iter::repeat_with(|| {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f64::from_bits(bits)
        });
        let edges = [f64::MIN_POSITIVE, 5e-324, f64::MAX, f64::EPSILON, -0.0, 1e16, 1e15, 9.999_999e-4];
        for x in edges.into_iter().chain(random.take(100_000)).filter(|x| x.is_finite()) {
            let text = toml_float(x);
            let read: toml::Value = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(read.as_float().map(f64::to_bits), Some(x.to_bits()), "{text}");
        }
    }

    #[test]
    fn perplexities_are_never_inf() {
        let shown = [1.0, 4.349, 12_200.0, 1e40, f64::INFINITY].map(perplexity);
        assert_eq!(shown, ["1.00", "4.35", "12.2k", "1e40", "above 1e300"]);
    }

    #[test]
    fn durations_are_told_in_two_units() {
        let shown = [0.0, 0.25, 59.12, 59.97, 125.0, 3599.6, 12_000.0].map(duration);
        assert_eq!(shown, ["0 s", "0.25 s", "59.1 s", "1 min 0 s", "2 min 5 s", "1 h 0 min", "3 h 20 min"]);
    }
}
