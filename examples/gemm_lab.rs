//! A bench to tune GEMM kernels on: any template, tile and size, checked first and then timed.
//!
//! ```text
//! cargo run --release --example gemm_lab -- shaders/matmul.wgsl 4096x4096x4096 nn 128x128x16x8x8 [key=value ...]
//! ```
//! prints the largest relative error against a GEMM in f64 of sampled elements, milliseconds and TFLOP/s of one GEMM
//! alone (the median of 15), and milliseconds of each of twenty in a row (the least of five times), as they follow each
//! other in a training step, but that they may overlap if they have several `sets` of operands. Further arguments set
//! template values, such as `T_in=f16 T_out=f16 splits=7`, `bias=true`, `epilogue=gelu` or `epilogue=multiply`,
//! `sums=true` (sums, the bias, which is 0, and what is multiplied by, which is 1, are timed and not checked);
//! `eight=true`, f16 results in vectors of eight, as `Launches::stores_eight` says (not with `epilogue=multiply`); and
//! `sets=4`, operands that take turns so that what is read has left the caches, or `k_slice=2432`. Tensor cores:
//! ```text
//! shaders/matmul_coop.wgsl 16384x1536x384 nn 128x128x32x64x64 T_in=f16 T_out=f16 side=16 subgroup=32 unroll=4 \
//!     split_fp16=false
//! ```
//! `GEMM_LAB_CACHE` names a folder for the driver's pipeline cache, which holds the machine code
//! (docs/lab/experiments.md). Sizes must be multiples of 4.

use rustyflow::gpu::{AdapterChoice, Buffer, Gpu, GpuSlice, Launch, Operand, Plan, Shader, Value, buffer, param};
use rustyflow::ops::random::Key;
use rustyflow::profile::{Cost, MemoryKind};
use rustyflow::testing::worst_error;
use std::time::Instant;

/// What the command line asks for.
struct Gemm {
    shader: Shader,
    /// M, N, K.
    sizes: [usize; 3],
    trans_a: bool,
    trans_b: bool,
    /// BM, BN, BK, TM, TN.
    tile: [usize; 5],
    /// Template values that replace those of [`Gemm::plan`].
    extra: Vec<(&'static str, Value)>,
}

/// The operands, the result, what the epilogue multiplies by or writes besides, and a bias or column sums.
type Operands = [GpuSlice; 5];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, size, layout, tile, extra @ ..] = &args[..] else {
        eprintln!("usage: gemm_lab TEMPLATE MxNxK nn|nt|tn|tt BMxBNxBKxTMxTN [key=value ...]");
        std::process::exit(2);
    };
    let gemm = Gemm::parse(file, size, layout, tile, extra);
    let cache = std::env::var_os("GEMM_LAB_CACHE").map(Into::into);
    let gpu = Gpu::open(&AdapterChoice { allow_software: true, cache, ..AdapterChoice::default() }).expect("a GPU");

    let [m, n, k] = gemm.sizes;
    let (a, b) = (uniform(m * k, 1, gemm.is_f16("T_in")), uniform(k * n, 2, gemm.is_f16("T_in")));
    let sets: Vec<Operands> = (0..gemm.int("sets", 1)).map(|_| gemm.upload(&gpu, &a, &b)).collect();
    let turn = std::cell::Cell::new(0);
    let flops = 2.0 * (m * n * k) as f64;
    let (plan, cost) = (gemm.plan(), Cost { flops, bytes: 0.0 });
    let run = || {
        let (inputs, outputs) = gemm.bind(&sets[turn.replace(turn.get() + 1) % sets.len()]);
        gpu.run("gemm", cost, plan.clone(), &inputs, &outputs).expect("the GPU works");
    };

    run();
    let largest = if gemm.is_f16("T_out") { 2e-3 } else { 1e-4 };
    let error = gemm.worst_error(&a, &b, &gemm.result(&gpu, &sets[0]));
    let (alone, in_a_row) = time(&gpu, &run);
    println!(
        "{} {:7.2} TFLOP/s {:8.3} ms, in a row {:8.3} ms  error {error:.1e}  {size} {layout} {tile} {}",
        if error < largest { "ok " } else { "BAD" },
        flops / alone / 1e12,
        1e3 * alone,
        1e3 * in_a_row,
        extra.join(" ")
    );
    if error >= largest {
        std::process::exit(1);
    }
}

/// "4096x4096x64".
fn numbers<const N: usize>(text: &str) -> Option<[usize; N]> {
    text.split('x').map(|n| n.parse().ok()).collect::<Option<Vec<usize>>>()?.try_into().ok()
}

/// "key=value".
fn template_value(pair: &str) -> (&'static str, Value) {
    let (key, value) = pair.split_once('=').expect("key=value");
    let value = match value {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        text => text.parse().map_or_else(|_| Value::Str(text.to_string().leak()), Value::Int),
    };
    (key.to_string().leak(), value)
}

/// GELU in the tanh form.
fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// Values between -1 and 1.
fn uniform(len: usize, seed: u64, f16: bool) -> Vec<f32> {
    let key = Key::new(seed);
    let rounded = |x: f32| if f16 { half::f16::from_f32(x).to_f32() } else { x };
    (0..len as u32).map(|i| rounded(key.bits(i) as f32 / (1u64 << 31) as f32 - 1.0)).collect()
}

fn upload(gpu: &Gpu, values: &[f32], f16: bool) -> GpuSlice {
    let halves: Vec<half::f16> = if f16 { values.iter().map(|x| half::f16::from_f32(*x)).collect() } else { vec![] };
    let bytes: &[u8] = if f16 { bytemuck::cast_slice(&halves) } else { bytemuck::cast_slice(values) };
    let slice = gpu.alloc(bytes.len(), MemoryKind::Other).expect("memory");
    gpu.upload(&slice, &[bytes]).expect("upload");
    slice
}

impl Gemm {
    /// The GEMM of the command line.
    ///
    /// # Panics
    /// If the template cannot be read, or an argument is malformed.
    fn parse(file: &str, size: &str, layout: &str, tile: &str, extra: &[String]) -> Gemm {
        let source = std::fs::read_to_string(file).expect("the template is readable");
        Gemm {
            shader: Shader { name: "gemm_lab", source: source.leak(), checked: false },
            sizes: numbers(size).expect("MxNxK"),
            trans_a: layout.starts_with('t'),
            trans_b: layout.ends_with('t'),
            tile: numbers(tile).expect("BMxBNxBKxTMxTN"),
            extra: extra.iter().map(|pair| template_value(pair)).collect(),
        }
    }

    /// A set of operands on the GPU; the result is NaN until a launch writes it.
    fn upload(&self, gpu: &Gpu, a: &[f32], b: &[f32]) -> Operands {
        let ([m, n, _], splits) = (self.sizes, self.int("splits", 1));
        let [of_operands, of_result] = ["T_in", "T_out"].map(|name| self.is_f16(name));
        [
            upload(gpu, a, of_operands),
            upload(gpu, b, of_operands),
            upload(gpu, &vec![f32::NAN; splits * m * n], of_result),
            upload(gpu, &vec![1.0; m * n], of_result),
            upload(gpu, &vec![0.0; splits * n], false),
        ]
    }

    /// The inputs and outputs of a launch, in the order of [`Gemm::buffers`].
    fn bind<'a>(&self, [a, b, c, matrix, row]: &'a Operands) -> (Vec<&'a GpuSlice>, Vec<&'a GpuSlice>) {
        let (mut inputs, mut outputs) = (vec![a, b], vec![c]);
        inputs.extend(self.has("bias", "true").then_some(row));
        inputs.extend(self.has("epilogue", "multiply").then_some(matrix));
        outputs.extend(self.has("epilogue", "gelu").then_some(matrix));
        outputs.extend(self.has("sums", "true").then_some(row));
        (inputs, outputs)
    }

    /// The computed elements (M, N): the sum of the splits.
    fn result(&self, gpu: &Gpu, [_, _, c, activated, _]: &Operands) -> Vec<f32> {
        // With GELU the result is its derivative, and GELU itself the other one.
        let bytes = gpu.download(if self.has("epilogue", "gelu") { activated } else { c }).expect("read-back");
        let partial: Vec<f32> = if self.is_f16("T_out") {
            bytemuck::pod_collect_to_vec::<u8, half::f16>(&bytes).into_iter().map(f32::from).collect()
        } else {
            bytemuck::pod_collect_to_vec(&bytes)
        };
        let [m, n, _] = self.sizes;
        (0..m * n).map(|i| partial.iter().skip(i).step_by(m * n).sum()).collect()
    }

    fn plan(&self) -> Plan {
        let ([m, n, k], [bm, bn, bk, ..]) = (self.sizes, self.tile);
        let (tiles_m, tiles_n) = (m.div_ceil(bm), n.div_ceil(bn));
        let splits = self.int("splits", 1);
        let [of_operands, of_result] =
            ["T_in", "T_out"].map(|name| if self.is_f16(name) { "vec4<f16>" } else { "vec4<f32>" });
        let params = [
            ("m", m),
            ("n", n),
            ("k", k),
            ("stride_a", m * k),
            ("stride_b", k * n),
            ("stride_c", m * n),
            ("tiles_m", tiles_m),
            ("tiles_n", tiles_n),
            ("splits", splits),
            ("k_slice", self.int("k_slice", k.div_ceil(splits).next_multiple_of(bk * self.int("unroll", 1)))),
            ("batches", 1),
        ];
        Plan::one(Launch {
            shader: self.shader,
            values: self.values(),
            buffers: self.buffers(of_operands, of_result),
            params: params.map(|(name, value)| param(name, value)).to_vec(),
            workgroups: tiles_m * tiles_n * splits,
        })
    }

    /// A number among the template values.
    fn int(&self, name: &str, default: usize) -> usize {
        let of = |(key, value): &(&str, Value)| match value {
            Value::Int(x) if *key == name => Some(*x as usize),
            _ => None,
        };
        self.extra.iter().find_map(of).unwrap_or(default)
    }

    /// The operands, what the epilogue reads, the result, and what is written besides.
    fn buffers(&self, of_operands: &'static str, of_result: &'static str) -> Vec<Buffer> {
        let bias = self.has("bias", "true");
        let of_result = if self.has("eight", "true") { "vec4<u32>" } else { of_result };
        let factors = buffer("factors", of_result, Operand::Input(2 + bias as usize));
        let mut buffers =
            vec![buffer("a", of_operands, Operand::Input(0)), buffer("b", of_operands, Operand::Input(1))];
        buffers.extend(bias.then_some(buffer("bias", "f32", Operand::Input(2))));
        buffers.extend(self.has("epilogue", "multiply").then_some(factors));
        buffers.push(buffer("c", of_result, Operand::Output(0)));
        buffers.extend(self.has("epilogue", "gelu").then_some(buffer("activated", of_result, Operand::Output(1))));
        buffers.extend(self.has("sums", "true").then_some(buffer("sums", "f32", Operand::Output(1))));
        buffers
    }

    /// Whether a template value was given as this.
    fn has(&self, name: &str, value: &str) -> bool {
        let is = |given: &Value| match given {
            Value::Str(text) => *text == value,
            Value::Bool(on) => on.to_string() == value,
            Value::Int(_) | Value::Strs(_) => false,
        };
        self.extra.iter().any(|(key, given)| *key == name && is(given))
    }

    /// Whether the operands (`T_in`) or the result (`T_out`) are f16.
    fn is_f16(&self, name: &str) -> bool {
        self.has(name, "f16")
    }

    /// What the template is rendered with.
    fn values(&self) -> Vec<(&'static str, Value)> {
        let ([m, n, k], [bm, bn, bk, tm, tn]) = (self.sizes, self.tile);
        let usual = [
            ("T_in", "f32".into()),
            ("T_out", "f32".into()),
            ("BM", bm.into()),
            ("BN", bn.into()),
            ("BK", bk.into()),
            ("TM", tm.into()),
            ("TN", tn.into()),
            ("trans_a", self.trans_a.into()),
            ("trans_b", self.trans_b.into()),
            ("vec_a", true.into()),
            ("vec_b", true.into()),
            ("vec_c", true.into()),
            ("edge_m", (!m.is_multiple_of(bm)).into()),
            ("edge_n", (!n.is_multiple_of(bn)).into()),
            ("edge_k", (!k.is_multiple_of(bk)).into()),
            ("bias", false.into()),
            ("accumulate", false.into()),
            ("sums", false.into()),
            ("epilogue", "".into()),
            ("split_k", (self.int("splits", 1) > 1).into()),
            ("batched", false.into()),
            ("eight", false.into()),
        ];
        let replaced = |name: &str| self.extra.iter().any(|(key, _)| *key == name);
        usual.into_iter().filter(|(name, _)| !replaced(name)).chain(self.extra.iter().cloned()).collect()
    }

    /// The largest error of 2000 elements of `c`, as a part of the root of K; infinity if one is no number.
    fn worst_error(&self, a: &[f32], b: &[f32], c: &[f32]) -> f64 {
        let [m, n, k] = self.sizes;
        let at = |x: &[f32], row: usize, col: usize, rows: usize, cols: usize, transposed: bool| {
            f64::from(if transposed { x[col * rows + row] } else { x[row * cols + col] })
        };
        let (got, want): (Vec<f32>, Vec<f64>) = (0..2000)
            .map(|sample| {
                // Corners and edges first, then elements all over.
                let i = [0, m - 1, sample * 7919 % m][sample % 3];
                let j = [n - 1, sample * 104_729 % n][sample % 2];
                let product = |l| at(a, i, l, m, k, self.trans_a) * at(b, l, j, k, n, self.trans_b);
                let sum = (0..k).map(product).sum::<f64>();
                (c[i * n + j], if self.has("epilogue", "gelu") { gelu(sum) } else { sum })
            })
            .unzip();
        worst_error(&got, &want, |_, _| (k as f64).sqrt())
    }
}

/// Seconds of one run alone, the median of 15, and of each of twenty in a row, the least of five times.
fn time(gpu: &Gpu, run: &dyn Fn()) -> (f64, f64) {
    const IN_A_ROW: u32 = 20;
    let synchronize = || gpu.synchronize().expect("the GPU works");
    gpu.time_kernels(true);
    // An idle GPU takes a while to raise its clock.
    let start = Instant::now();
    while start.elapsed().as_millis() < 400 {
        (0..10).for_each(|_| run());
        synchronize();
    }
    let mut alone = [(); 15].map(|()| {
        gpu.profiler().take();
        run();
        synchronize();
        gpu.profiler().take().kernels.get("gemm").map_or(f64::NAN, |total| total.seconds)
    });
    alone.sort_by(f64::total_cmp);
    gpu.time_kernels(false);
    let in_a_row = [(); 5].map(|()| {
        gpu.profiler().take();
        (0..IN_A_ROW).for_each(|_| run());
        synchronize();
        gpu.profiler().take().gpu_busy_seconds / f64::from(IN_A_ROW)
    });
    (alone[alone.len() / 2], in_a_row.into_iter().fold(f64::INFINITY, f64::min))
}
