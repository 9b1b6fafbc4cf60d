//! A bench to tune the matrix product on: any template, tile and size, checked first and then timed.
//!
//! ```text
//! cargo run --release --example gemm_lab -- shaders/matmul.wgsl 4096x4096x4096 nn 128x128x16x8x8 [key=value ...]
//! ```
//! prints the largest relative error against a product in f64 of sampled elements, milliseconds and TFLOP/s of one
//! product alone (the median of 15), and milliseconds of each of twenty in a row (the least of five times), as they
//! follow each other in a training step. Further arguments set template values. Sizes must be multiples of 4.

use rustyflow::gpu::{AdapterChoice, Gpu, Launch, Operand, Plan, Shader, Value, buffer, param};
use rustyflow::profile::{Cost, MemoryKind};

const IN_A_ROW: u32 = 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, size, layout, tile, extra @ ..] = &args[..] else {
        eprintln!("usage: gemm_lab TEMPLATE MxNxK nn|nt|tn|tt BMxBNxBKxTMxTN [key=value ...]");
        std::process::exit(2);
    };
    let numbers = |text: &str| text.split('x').map(|n| n.parse().expect("a number")).collect::<Vec<usize>>();
    let [m, n, k] = numbers(size)[..] else { panic!("MxNxK") };
    let [bm, bn, bk, tm, tn] = numbers(tile)[..] else { panic!("BMxBNxBKxTMxTN") };
    let (trans_a, trans_b) = (layout.starts_with('t'), layout.ends_with('t'));
    let source = std::fs::read_to_string(file).expect("the template is readable");
    let shader = Shader { name: "gemm_lab", source: source.leak() };
    let gpu = Gpu::open(&AdapterChoice { allow_software: true, ..AdapterChoice::default() }).expect("a GPU");

    let values_of = |len: usize, seed: u64| {
        let key = rustyflow::ops::random::Key::new(seed);
        (0..len as u32).map(|i| key.bits(i) as f32 / (1u64 << 31) as f32 - 1.0).collect::<Vec<f32>>()
    };
    let (a, b) = (values_of(m * k, 1), values_of(k * n, 2));
    let upload = |values: &[f32]| {
        let slice = gpu.alloc(4 * values.len(), MemoryKind::Other).expect("memory");
        gpu.upload(&slice, bytemuck::cast_slice(values)).expect("upload");
        slice
    };
    let (gpu_a, gpu_b, gpu_c) = (upload(&a), upload(&b), upload(&vec![f32::NAN; m * n]));

    let (tiles_m, tiles_n) = (m.div_ceil(bm), n.div_ceil(bn));
    let mut values: Vec<(&'static str, Value)> = vec![
        ("T_in", "f32".into()),
        ("T_out", "f32".into()),
        ("BM", (bm as u32).into()),
        ("BN", (bn as u32).into()),
        ("BK", (bk as u32).into()),
        ("TM", (tm as u32).into()),
        ("TN", (tn as u32).into()),
        ("trans_a", trans_a.into()),
        ("trans_b", trans_b.into()),
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
    ];
    for pair in extra {
        let (key, value) = pair.split_once('=').expect("key=value");
        let value = match value {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            number => Value::Int(number.parse().expect("a number, true or false")),
        };
        let key: &'static str = key.to_string().leak();
        values.retain(|(name, _)| *name != key);
        values.push((key, value));
    }
    let whole_k = k.next_multiple_of(bk);
    let params = [
        ("m", m),
        ("n", n),
        ("k", k),
        ("stride_a", m * k),
        ("stride_b", k * n),
        ("stride_c", m * n),
        ("tiles_m", tiles_m),
        ("tiles_n", tiles_n),
        ("splits", 1),
        ("k_slice", whole_k),
        ("batches", 1),
    ];
    let plan = Plan::one(Launch {
        shader,
        values,
        buffers: vec![
            buffer("a", "vec4<f32>", Operand::Input(0)),
            buffer("b", "vec4<f32>", Operand::Input(1)),
            buffer("c", "vec4<f32>", Operand::Output(0)),
        ],
        params: params.map(|(name, value)| param(name, value)).to_vec(),
        workgroups: tiles_m * tiles_n,
    });
    let cost = Cost { flops: 2.0 * (m * n * k) as f64, bytes: 0.0 };
    let run = || gpu.run("gemm", cost, plan.clone(), &[&gpu_a, &gpu_b], &[&gpu_c]).expect("the GPU works");

    run();
    let c: Vec<f32> = bytemuck::pod_collect_to_vec(&gpu.download(&gpu_c).expect("read-back"));
    let mut worst = 0.0f64;
    for sample in 0..2000 {
        // Corners and edges first, then elements all over.
        let i = [0, m - 1, sample * 7919 % m][sample % 3];
        let j = [n - 1, sample * 104_729 % n][sample % 2];
        let at = |x: &[f32], row: usize, col: usize, rows: usize, cols: usize, transposed: bool| {
            f64::from(if transposed { x[col * rows + row] } else { x[row * cols + col] })
        };
        let want: f64 = (0..k).map(|l| at(&a, i, l, m, k, trans_a) * at(&b, l, j, k, n, trans_b)).sum();
        let error = (f64::from(c[i * n + j]) - want).abs() / (k as f64).sqrt();
        worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
    }
    gpu.time_kernels(true);
    // An idle GPU takes a while to raise its clock.
    let start = std::time::Instant::now();
    while start.elapsed().as_millis() < 400 {
        for _ in 0..10 {
            run();
        }
        gpu.synchronize().expect("the GPU works");
    }
    let mut times = Vec::new();
    for _ in 0..15 {
        gpu.profiler().take();
        run();
        gpu.synchronize().expect("the GPU works");
        times.push(gpu.profiler().take().kernels.get("gemm").map_or(f64::NAN, |t| t.seconds));
    }
    gpu.time_kernels(false);
    let mut in_a_row = f64::INFINITY;
    for _ in 0..5 {
        gpu.profiler().take();
        for _ in 0..IN_A_ROW {
            run();
        }
        gpu.synchronize().expect("the GPU works");
        in_a_row = in_a_row.min(gpu.profiler().take().gpu_busy_seconds / f64::from(IN_A_ROW));
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let tflops = 2.0 * (m * n * k) as f64 / median / 1e12;
    let verdict = if worst < 1e-4 { "ok " } else { "BAD" };
    println!(
        "{verdict} {tflops:7.2} TFLOP/s {:8.3} ms, in a row {:8.3} ms  error {worst:.1e}  {size} {layout} {tile} {}",
        1e3 * median,
        1e3 * in_a_row,
        extra.join(" ")
    );
    if worst >= 1e-4 {
        std::process::exit(1);
    }
}
