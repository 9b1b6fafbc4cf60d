//! The profiling report at the end of a run: kernel and host time, a table by kernel, and the bound of the slowest
//! kernels.

use super::{BesidePeaks, MemoryKind, MemoryStats, Profile, Roofline, Span, StartUp, WallTime, roofline};
use crate::units;
use serde::Serialize;
use std::fmt::{self, Write};

/// A row of the table by kernel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelRow {
    pub name: &'static str,
    pub calls: u64,
    pub seconds: f64,
    /// The mean.
    pub ms_per_call: f64,
    /// Fraction of all kernels' time, 0 to 1.
    pub share: f64,
    /// Achieved TFLOP/s.
    pub tflops: f64,
    /// Achieved GB/s, with each byte read or written counted once.
    pub gb_per_s: f64,
    /// Fractions of the device's peaks; `None` if they were not measured.
    pub beside_peaks: Option<BesidePeaks>,
}

/// Time outside kernels, seconds. On a GPU, only its idle time counts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HostTime {
    pub data: f64,
    pub compile: f64,
    pub encode: f64,
    pub wait: f64,
    pub other: f64,
    pub total: f64,
    /// Host work that overlapped with GPU work.
    pub hidden: f64,
}

/// The time of a training run by kernel and host activity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// "GPU" or "CPU".
    pub device: &'static str,
    /// Without evaluation, sampling and saving.
    pub training_seconds: f64,
    /// Passes over the text, possibly fractional.
    pub epochs: f64,
    /// `None` without a complete epoch.
    pub seconds_per_epoch: Option<f64>,
    pub kernel_seconds: f64,
    /// Sorted by time, slowest first.
    pub kernels: Vec<KernelRow>,
    /// Measured peaks of the device; `None` if not measured.
    pub peaks: Option<Roofline>,
    pub host: HostTime,
    /// Memory of the device's tensors.
    pub memory: MemoryStats,
    /// Time of the whole run by phase; `None` for a benchmark.
    pub wall: Option<WallTime>,
    /// Time to the first step; `None` for a benchmark, or without a step.
    pub start_up: Option<StartUp>,
    /// Whether kernel times are from sampled steps, scaled to all steps.
    pub sampled: bool,
    /// Whether GPU time is estimated by the host's waiting time, because the GPU has no timestamps.
    pub estimated: bool,
}

impl Report {
    /// `epochs` may be a fraction; `profile` and `memory` are those of a GPU or of the CPU.
    pub fn new(profile: &Profile, on_gpu: bool, training_seconds: f64, epochs: f64, memory: MemoryStats) -> Report {
        let span = |span| profile.spans.get(&span).copied().unwrap_or(0.0);
        // The sum of nothing is -0.
        let measured = profile.kernels.values().map(|k| k.seconds).sum::<f64>() + 0.0;
        let estimated = on_gpu && profile.gpu_busy_seconds == 0.0;
        let kernel_seconds = match (on_gpu, estimated) {
            (false, _) => measured,
            (true, false) => profile.gpu_busy_seconds,
            (true, true) => span(Span::Wait),
        }
        .min(training_seconds);
        // On a GPU only some steps have a timestamp around each kernel: their shares stand for all steps.
        let scale = if on_gpu && measured > 0.0 { kernel_seconds / measured } else { 1.0 };
        let mut kernels: Vec<KernelRow> = profile
            .kernels
            .iter()
            .map(|(name, k)| KernelRow {
                name,
                calls: profile.recorded.get(name).copied().unwrap_or(k.calls),
                seconds: k.seconds * scale,
                ms_per_call: 1e3 * k.seconds / k.calls as f64,
                share: k.seconds / measured,
                tflops: k.flops / k.seconds / 1e12,
                gb_per_s: k.bytes / k.seconds / 1e9,
                beside_peaks: None,
            })
            .collect();
        kernels.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let host = host_time(
            training_seconds,
            kernel_seconds,
            [Span::Data, Span::Compile, Span::Encode, Span::Wait].map(span),
            on_gpu,
        );
        Report {
            device: if on_gpu { "GPU" } else { "CPU" },
            training_seconds,
            epochs,
            seconds_per_epoch: (epochs >= 1.0).then(|| training_seconds / epochs),
            kernel_seconds,
            kernels,
            peaks: None,
            host,
            memory,
            wall: None,
            start_up: None,
            sampled: on_gpu && measured > 0.0 && scale > 1.05,
            estimated,
        }
    }

    /// Sets the device's peaks, and each kernel's fractions of them.
    pub fn set_peaks(&mut self, peaks: Roofline) {
        self.peaks = Some(peaks);
        for k in &mut self.kernels {
            k.beside_peaks = Some(peaks.over(k));
        }
    }

    /// Host share of the training time, 0 to 1.
    pub fn host_share(&self) -> f64 {
        if self.training_seconds > 0.0 { self.host.total / self.training_seconds } else { 0.0 }
    }

    /// The text of `profile.txt`: [`Report::summary`], then the table by kernel.
    pub fn text(&self) -> String {
        let mut text = self.summary();
        self.write_kernels(&mut text);
        text.push_str(&roofline::largest_text(&self.kernels, self.peaks.as_ref()));
        text
    }

    /// The text printed at the end of a run: kernel and host time, memory, and the time of the whole run.
    pub fn summary(&self) -> String {
        /// Kernels named in the first line.
        const NAMED: usize = 4;
        let seconds = |seconds: f64| format!("{} s", units::digits(seconds));
        let mut text = String::from("[Profiling report]\n");
        let mut named: Vec<String> =
            self.kernels.iter().take(NAMED).map(|k| format!("{} {}", k.name, seconds(k.seconds))).collect();
        let rest: f64 = self.kernels.iter().skip(NAMED).map(|k| k.seconds).sum();
        if self.kernels.len() > NAMED {
            named.push(format!("other {}", seconds(rest)));
        }
        let percent = |seconds: f64| 100.0 * seconds / self.training_seconds.max(1e-9);
        let HostTime { data, compile, encode, wait, other, total, hidden } = self.host;
        let host_share = percent(total);
        let [data, compile, encode, wait, other, total] = [data, compile, encode, wait, other, total].map(seconds);
        let _ = writeln!(
            text,
            "  - {} kernels: {}  total {} ({:.1}% of training time)",
            self.device,
            named.join(", "),
            seconds(self.kernel_seconds),
            percent(self.kernel_seconds)
        );
        let gpu_spans = if self.device == "GPU" {
            format!("compile {compile}, encode {encode}, wait {wait}, ")
        } else {
            String::new()
        };
        let _ = writeln!(text, "  - Host: data {data}, {gpu_spans}other {other}  total {total} ({host_share:.1}%)");
        if hidden >= 0.005 {
            let _ = writeln!(text, "    (another {} of host work ran while the GPU computed)", seconds(hidden));
        }
        if self.estimated {
            let _ = writeln!(text, "    (this GPU has no timestamps: its time is what the host waited for it)");
        }
        let _ = writeln!(text, "  - {} memory: {}", self.device, memory_text(&self.memory));
        if let Some(wall) = &self.wall {
            let _ = writeln!(text, "  - Run: {}", wall.text());
        }
        if let Some(start_up) = &self.start_up {
            let _ = writeln!(text, "  - Start: {start_up}");
        }
        let _ = match self.seconds_per_epoch {
            Some(of_epoch) => writeln!(text, "[AVG_EPOCH_TIME] {}", seconds(of_epoch)),
            None => writeln!(
                text,
                "[AVG_EPOCH_TIME] - (no whole epoch: {} in {})",
                units::number(self.epochs),
                units::duration(self.training_seconds)
            ),
        };
        text
    }

    /// The table by kernel, if there is one.
    fn write_kernels(&self, text: &mut String) {
        let fastest = self.kernels.iter().map(|k| 1e12 * k.tflops).fold(0.0, f64::max);
        let (unit, size) = units::flop_rate_unit(fastest);
        if !self.kernels.is_empty() {
            let _ = writeln!(
                text,
                "\n  {:<28} {:>9} {:>11} {:>7} {:>9} {:>8}",
                "kernel", "calls", "ms", "share", unit, "GB/s"
            );
        }
        for k in &self.kernels {
            let _ = writeln!(
                text,
                "  {:<28} {:>9} {:>11} {:>6.1}% {:>9} {:>8}",
                k.name,
                k.calls,
                units::digits(k.seconds * 1e3),
                100.0 * k.share,
                units::digits(1e12 * k.tflops / size),
                units::digits(k.gb_per_s)
            );
        }
        if self.sampled {
            text.push_str("  (times by kernel come from sampled steps, as shares of the GPU time of all steps)\n");
        }
    }
}

/// Of any code that was measured: its time, its memory, and the table by kernel.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut text = format!(
            "{}: {}, of which kernels {}\nmemory: {}\n",
            self.device,
            units::si(self.training_seconds, "s"),
            units::si(self.kernel_seconds, "s"),
            memory_text(&self.memory)
        );
        self.write_kernels(&mut text);
        f.write_str(&text)
    }
}

/// "4.0 GiB at most (activations 3.0 GiB, ..), 4.5 GiB obtained", the largest kind first.
fn memory_text(memory: &MemoryStats) -> String {
    let mut kinds = MemoryKind::ALL.map(|kind| (memory.peak_by_kind[kind], kind.name().replace('_', " ")));
    kinds.sort_by_key(|&(bytes, _)| std::cmp::Reverse(bytes));
    let size = |bytes: usize| units::bytes(bytes as u64);
    let parts: Vec<String> = kinds.into_iter().map(|(bytes, name)| format!("{name} {}", size(bytes))).collect();
    format!(
        "{} at most ({}), {} obtained in {} buffers",
        size(memory.peak_bytes),
        parts.join(", "),
        size(memory.reserved_bytes),
        memory.buffers
    )
}

/// Splits the time outside kernels. `spans`: data, compile, encode, wait.
///
/// Host work that overlaps with the GPU is hidden; only the rest counts, split in proportion. Waiting counts only
/// beyond the GPU's busy time.
fn host_time(training: f64, kernels: f64, spans: [f64; 4], on_gpu: bool) -> HostTime {
    let [data, compile, encode, wait] = spans;
    let total = (training - kernels).max(0.0);
    if !on_gpu {
        return HostTime { data, compile, encode, wait, other: (total - data).max(0.0), total, hidden: 0.0 };
    }
    let other = (training - data - compile - encode - wait).max(0.0);
    let work = data + compile + encode + other;
    let idle_wait = (wait - kernels).clamp(0.0, total);
    let exposed = (total - idle_wait).clamp(0.0, work);
    let part = if work > 0.0 { exposed / work } else { 0.0 };
    HostTime {
        data: data * part,
        compile: compile * part,
        encode: encode * part,
        wait: total - exposed,
        other: other * part,
        total,
        hidden: work - exposed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::KernelTotal;

    fn profile() -> Profile {
        let kernel = |calls, seconds| KernelTotal { calls, seconds, flops: 2e12, bytes: 1e9 };
        Profile {
            kernels: [("matmul", kernel(10, 2.0)), ("softmax", kernel(10, 0.5))].into(),
            recorded: [("matmul", 43), ("softmax", 41)].into(),
            gpu_busy_seconds: 10.0,
            spans: [(Span::Data, 0.5), (Span::Encode, 2.0), (Span::Wait, 8.0)].into(),
        }
    }

    #[test]
    fn kernels_and_host_add_up_to_the_training_time() {
        for on_gpu in [false, true] {
            let report = Report::new(&profile(), on_gpu, 11.0, 2.0, MemoryStats::default());
            let HostTime { data, compile, encode, wait, other, total, .. } = report.host;
            assert!((report.kernel_seconds + total - 11.0).abs() < 1e-9);
            if on_gpu {
                assert!((data + compile + encode + wait + other - total).abs() < 1e-9, "{:?}", report.host);
            }
        }
    }

    #[test]
    fn sampled_kernels_are_scaled_to_the_time_of_all_steps() {
        let report = Report::new(&profile(), true, 11.0, 2.0, MemoryStats::default());
        assert!(report.sampled);
        assert_eq!((report.kernels[0].name, report.kernels[0].calls), ("matmul", 43), "calls are counted");
        assert!((report.kernels[0].seconds - 8.0).abs() < 1e-9);
        assert!((report.kernels[0].tflops - 1.0).abs() < 1e-9, "rates are those of the samples");
    }

    #[test]
    fn host_work_behind_the_gpu_does_not_count() {
        // 10 s of GPU in 11 s: one second was not hidden, of 3 s of work.
        let host = Report::new(&profile(), true, 11.0, 1.0, MemoryStats::default()).host;
        assert!((host.total - 1.0).abs() < 1e-9 && (host.hidden - 2.0).abs() < 1e-9, "{host:?}");
    }

    #[test]
    fn text_has_the_documented_form() {
        let text = Report::new(&profile(), true, 11.0, 2.0, MemoryStats::default()).text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "[Profiling report]");
        assert_eq!(lines[1], "  - GPU kernels: matmul 8.00 s, softmax 2.00 s  total 10.0 s (90.9% of training time)");
        assert!(lines[2].starts_with("  - Host: data 0.167 s, compile 0 s, encode 0.667 s"), "{text}");
        assert!(text.contains("[AVG_EPOCH_TIME] 5.50 s"), "{text}");
    }

    #[test]
    fn the_table_by_kernel_has_three_digits_in_a_unit_that_suits_the_device() {
        let slow = |calls, seconds| KernelTotal { calls, seconds, flops: 1.4e9, bytes: 1.5e9 };
        let kernels = [("matmul", slow(10, 0.023_456)), ("fill", KernelTotal { flops: 0.0, ..slow(1, 0.000_12) })];
        let profile = Profile { kernels: kernels.into(), ..profile() };
        let text = Report::new(&profile, false, 1.0, 2.0, MemoryStats::default()).text();
        let table: Vec<Vec<&str>> =
            text.lines().filter(|line| line.contains("  ")).map(|line| line.split_whitespace().collect()).collect();
        for row in [
            ["kernel", "calls", "ms", "share", "GFLOP/s", "GB/s"],
            ["matmul", "43", "23.5", "99.5%", "59.7", "63.9"],
            ["fill", "1", "0.12", "0.5%", "0", "12500"],
        ] {
            assert!(table.iter().any(|found| *found == row), "{row:?} in {text}");
        }
    }

    #[test]
    fn less_than_an_epoch_has_no_time_per_epoch() {
        let report = Report::new(&profile(), true, 11.0, 0.25, MemoryStats::default());
        assert_eq!(report.seconds_per_epoch, None);
        let text = report.text();
        assert!(text.contains("[AVG_EPOCH_TIME] - (no whole epoch: 0.25 in 11.0 s)"), "{text}");
    }

    #[test]
    fn the_largest_kernels_end_the_text_with_peaks_or_without() {
        let mut report = Report::new(&profile(), false, 11.0, 2.0, MemoryStats::default());
        let end = "\n  Largest kernels:\n  - matmul, 80.0%: 1.00 TFLOP/s, 500 MB/s; 200 ms per call\n";
        assert!(report.text().contains(end), "{}", report.text());
        report.set_peaks(Roofline { dtype: "f32", tflops: 1.25, gb_per_s: 1000.0 });
        let text = report.text();
        let line = "  - matmul, 80.0%: 1.00 TFLOP/s, 500 MB/s; mostly arithmetic, 80% of the GEMM peak\n";
        assert!(text.contains(" 1.25 TFLOP/s in f32 GEMMs, 1.00 TB/s):\n") && text.contains(line), "{text}");
        assert!(text.lines().last().is_some_and(|line| line.starts_with("  - softmax, 20.0%: 4.00 TFLOP/s")), "{text}");
    }

    #[test]
    fn memory_is_told_by_kind_the_largest_first() {
        let mut memory = MemoryStats { peak_bytes: 5 << 20, reserved_bytes: 6 << 20, buffers: 3, ..Default::default() };
        memory.peak_by_kind[MemoryKind::OptimizerState] = 4 << 20;
        memory.peak_by_kind[MemoryKind::Scratch] = 1 << 20;
        for (on_gpu, device) in [(true, "GPU"), (false, "CPU")] {
            let text = Report::new(&profile(), on_gpu, 11.0, 2.0, memory).text();
            let line = " memory: 5.00 MiB at most (optimizer state 4.00 MiB, scratch 1.00 MiB, parameters 0 B, ";
            assert!(text.contains(&format!("  - {device}{line}")), "{text}");
            assert!(text.contains("), 6.00 MiB obtained in 3 buffers\n"), "{text}");
        }
    }
}
