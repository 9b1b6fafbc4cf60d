//! The bound of a kernel by the roofline model (Williams, Waterman and Patterson 2009,
//! <https://doi.org/10.1145/1498765.1498785>): its throughput and bandwidth compared with the device's peaks.

use super::KernelRow;
use crate::units;
use serde::Serialize;
use std::fmt::Write;

/// Measured peaks of a device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Roofline {
    /// Element type of the GEMMs: "f32" or "f16".
    pub dtype: &'static str,
    /// TFLOP/s of large GEMMs.
    pub tflops: f64,
    /// GB/s of reading and writing tensors larger than any cache.
    pub gb_per_s: f64,
}

/// The bound of a kernel's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Compute-bound: FLOPs at the GEMM peak.
    Compute,
    /// Memory-bound: bytes at the peak bandwidth.
    Memory,
    /// Launch-bound: calls are so small that start and end dominate.
    SmallCalls,
    /// None of these bounds.
    Neither,
}

/// A kernel's rates as fractions of the device's peaks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BesidePeaks {
    /// Fraction of the GEMM peak.
    pub compute: f64,
    /// Fraction of the bandwidth peak; above 1 for data in a cache.
    pub memory: f64,
    pub bound: Bound,
}

impl Roofline {
    /// A kernel's fractions of these peaks.
    pub fn over(&self, kernel: &KernelRow) -> BesidePeaks {
        /// Of a peak, from which on it bounds a kernel: more than half of the time is then explained, with room for
        /// what measured peaks vary by. On one core the classifier's rows, held up by their exponentials, reach half of
        /// the bandwidth.
        const BOUND: f64 = 0.6;
        /// Time to start a kernel and fill the device: nearly empty launches take 5 to 20 us on an H200.
        const START_MS: f64 = 0.01;
        let (compute, memory) = (kernel.tflops / self.tflops, kernel.gb_per_s / self.gb_per_s);
        let explained = compute.max(memory);
        let bound = if explained < BOUND {
            if explained * kernel.ms_per_call < START_MS { Bound::SmallCalls } else { Bound::Neither }
        } else if compute > memory {
            Bound::Compute
        } else {
            Bound::Memory
        };
        BesidePeaks { compute, memory, bound }
    }
}

/// A line for each of the largest kernels, of rows that have the largest first; without peaks none says what bounds it.
pub(super) fn largest_text(kernels: &[KernelRow], peaks: Option<&Roofline>) -> String {
    const LARGEST: usize = 3;
    let mut text = String::new();
    if kernels.is_empty() {
        return text;
    }
    text.push_str("\n  Largest kernels");
    if let Some(peaks) = peaks {
        let (gemms, bandwidth) = (units::si(1e12 * peaks.tflops, "FLOP/s"), units::si(1e9 * peaks.gb_per_s, "B/s"));
        let _ = write!(text, " (the device's peaks just now: {gemms} in {} GEMMs, {bandwidth})", peaks.dtype);
    }
    text.push_str(":\n");
    for k in kernels.iter().take(LARGEST) {
        let _ = writeln!(text, "  - {}", sentence(k));
    }
    text
}

/// "matmul, 83.1%: 47.1 TFLOP/s, 210 GB/s; mostly arithmetic, 94% of the GEMM peak".
fn sentence(k: &KernelRow) -> String {
    let rates = format!("{}, {}", units::si(1e12 * k.tflops, "FLOP/s"), units::si(1e9 * k.gb_per_s, "B/s"));
    format!("{}, {:.1}%: {rates}; {}", k.name, 100.0 * k.share, why(k))
}

fn why(k: &KernelRow) -> String {
    let seconds = 1e-3 * k.ms_per_call;
    let call = units::si(seconds, "s");
    let Some(BesidePeaks { compute, memory, bound }) = k.beside_peaks else { return format!("{call} per call") };
    let explained = units::si(seconds * compute.max(memory), "s");
    let (compute, memory) = (100.0 * compute, 100.0 * memory);
    match bound {
        Bound::Compute => format!("mostly arithmetic, {compute:.0}% of the GEMM peak"),
        // What was measured varies by a few percent.
        Bound::Memory if memory < 110.0 => format!("mostly memory, {memory:.0}% of the bandwidth"),
        Bound::Memory => format!("mostly memory, {memory:.0}% of the bandwidth, as only a cache allows"),
        Bound::SmallCalls => {
            let (flop, bytes) =
                (units::si(1e12 * k.tflops * seconds, "FLOP"), units::si(1e9 * k.gb_per_s * seconds, "B"));
            format!("it waits: small calls of {call}, each {flop} and {bytes}, of which the peaks explain {explained}")
        }
        Bound::Neither => format!(
            "neither arithmetic ({compute:.0}%) nor memory ({memory:.0}%): of {call} per call the peaks explain \
             {explained}; the rest is waiting, or work that no peak counts"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Roofline = Roofline { dtype: "f32", tflops: 50.0, gb_per_s: 4000.0 };

    fn row(name: &'static str, ms_per_call: f64, tflops: f64, gb_per_s: f64) -> KernelRow {
        let mut row = KernelRow {
            name,
            calls: 100,
            seconds: 0.1 * ms_per_call,
            ms_per_call,
            share: 0.25,
            tflops,
            gb_per_s,
            beside_peaks: None,
        };
        row.beside_peaks = Some(H200.over(&row));
        row
    }

    fn bound(row: &KernelRow) -> Bound {
        row.beside_peaks.expect("peaks").bound
    }

    #[test]
    fn a_kernel_near_the_gemm_peak_is_bound_by_arithmetic() {
        let row = row("matmul", 2.0, 47.0, 200.0);
        assert_eq!(bound(&row), Bound::Compute);
        let want = "matmul, 25.0%: 47.0 TFLOP/s, 200 GB/s; mostly arithmetic, 94% of the GEMM peak";
        assert_eq!(sentence(&row), want);
    }

    #[test]
    fn a_kernel_near_the_bandwidth_is_bound_by_memory() {
        let row = row("adamw", 0.8, 0.5, 3000.0);
        assert_eq!(bound(&row), Bound::Memory);
        assert_eq!(sentence(&row), "adamw, 25.0%: 500 GFLOP/s, 3.00 TB/s; mostly memory, 75% of the bandwidth");
    }

    #[test]
    fn more_than_the_bandwidth_is_said_to_come_from_a_cache() {
        let row = row("gelu", 0.1, 0.5, 6000.0);
        assert!(sentence(&row).ends_with("mostly memory, 150% of the bandwidth, as only a cache allows"));
    }

    #[test]
    fn a_kernel_of_small_calls_waits() {
        let row = row("add_bias", 0.008, 0.05, 400.0);
        assert_eq!(bound(&row), Bound::SmallCalls);
        let why = "it waits: small calls of 8.00 us, each 400 kFLOP and 3.20 MB, of which the peaks explain 800 ns";
        assert_eq!(sentence(&row), format!("add_bias, 25.0%: 50.0 GFLOP/s, 400 GB/s; {why}"));
    }

    #[test]
    fn a_long_call_that_neither_peak_explains_is_not_called_small() {
        let row = row("attention", 1.0, 29.0, 80.0);
        assert_eq!(bound(&row), Bound::Neither);
        let why = "neither arithmetic (58%) nor memory (2%): of 1.00 ms per call the peaks explain 580 us; the rest is \
                   waiting, or work that no peak counts";
        assert_eq!(sentence(&row), format!("attention, 25.0%: 29.0 TFLOP/s, 80.0 GB/s; {why}"));
    }

    #[test]
    fn without_peaks_nothing_is_said_about_them() {
        let row = KernelRow { beside_peaks: None, ..row("matmul", 2.0, 47.0, 200.0) };
        let text = largest_text(&[row], None);
        assert_eq!(text, "\n  Largest kernels:\n  - matmul, 25.0%: 47.0 TFLOP/s, 200 GB/s; 2.00 ms per call\n");
    }

    #[test]
    fn the_three_largest_are_named_beside_the_peaks() {
        let rows = ["a", "b", "c", "d"].map(|name| row(name, 1.0, 47.0, 200.0));
        let text = largest_text(&rows, Some(&H200));
        let lines: Vec<&str> = text.lines().collect();
        let peaks = "(the device's peaks just now: 50.0 TFLOP/s in f32 GEMMs, 4.00 TB/s)";
        assert_eq!(lines[..2], ["", &format!("  Largest kernels {peaks}:")]);
        assert!(lines.len() == 5 && lines[2].starts_with("  - a,") && lines[4].starts_with("  - c,"), "{text}");
        assert_eq!(largest_text(&[], Some(&H200)), "");
    }

    #[test]
    fn units_have_prefixes_and_three_digits() {
        let values = [0.0, 2.5e-8, 9.996e-6, 0.0123, 1.0, 999.7, 123_456.0, 4.5e13];
        let want = ["0 s", "25.0 ns", "10.0 us", "12.3 ms", "1.00 s", "1.00 ks", "123 ks", "45.0 Ts"];
        assert_eq!(values.map(|value| units::si(value, "s")), want);
    }
}
