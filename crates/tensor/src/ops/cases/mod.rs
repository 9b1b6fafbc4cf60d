//! Test cases: one row per op and shape. All tests that cover every op use this table: gradients against finite
//! differences, the GPU against the CPU (also by `doctor`), every shader variant. `src/bench/table/` has a row for
//! each of these ops too.

mod attention;
mod batch_norm;
mod conv;
mod losses;
mod mixed;
mod movement;
mod pool;
mod recurrent;
mod reduce;

pub use super::inputs::Values;

use super::inputs::{AROUND_ZERO, POSITIVE, domain, draw};
use super::random::Key;
use super::{BINARY, COMPARISONS, Heads, UNARY};
use crate::tensor::{DType, Tensor};
use crate::{Device, Result};

/// Computes a case's output from its inputs.
pub type Apply = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

/// An op with inputs of given shapes.
pub struct Case {
    /// "op/variant/shape".
    pub name: String,
    pub inputs: Vec<(Vec<usize>, Values)>,
    pub apply: Apply,
    /// Tolerance for rounding, between devices and against f64: `atol + rtol * |reference|`.
    pub atol: f32,
    pub rtol: f32,
    /// Whether finite differences are meaningful: false near a kink or for huge values. For tests.
    #[cfg_attr(not(feature = "testing"), allow(dead_code))]
    pub smooth: bool,
    /// Whether it stores f16, which not every GPU supports.
    pub f16: bool,
}

impl Case {
    fn new(
        name: impl Into<String>,
        inputs: Vec<(Vec<usize>, Values)>,
        apply: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    ) -> Case {
        // One operation in f32 rounds by 6e-8; exp and its like are good to about 1e-6 on every device.
        Case { name: name.into(), inputs, apply: Box::new(apply), atol: 2e-6, rtol: 2e-6, smooth: true, f16: false }
    }

    /// Sets the tolerance, for ops whose error grows with the number of summed terms.
    fn tolerance(self, atol: f32, rtol: f32) -> Case {
        Case { atol, rtol, ..self }
    }

    fn not_smooth(self) -> Case {
        Case { smooth: false, ..self }
    }

    /// The inputs, drawn from `seed` and equal on every device.
    pub fn draw(&self, device: &Device, seed: u64) -> Result<Vec<Tensor>> {
        draw(&self.inputs, device, seed)
    }

    /// Exercises kernels without a case: embedding gradients that are collected as rows and then added to the whole
    /// table's gradient.
    ///
    /// # Errors
    /// If the device runs out of memory.
    #[cfg(feature = "testing")]
    pub fn rows_apart(device: &Device) -> Result<()> {
        use crate::tensor::{Edge, SparseGradient};
        let table = Tensor::zeros([9, 4], DType::F32, device)?.requires_grad()?;
        let ids = |len: usize| Tensor::zeros([len], DType::U32, device);
        if let Edge::Leaf(gradient) = table.edge() {
            let sparse = SparseGradient::new(ids(9)?, 2);
            gradient.collect_rows(Some(sparse.clone()));
            let y = table.embedding(&ids(3)?)?;
            y.backward_with(&Tensor::zeros([3, 4], DType::F32, device)?)?;
            let rows = sparse.take();
            rows.map_or(Ok(()), |rows| super::add_rows(gradient, &rows, &ids(2)?))?;
        }
        Ok(())
    }
}

/// Every case.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    unary(&mut cases);
    binary(&mut cases);
    compare(&mut cases);
    matmul(&mut cases);
    reduce::all(&mut cases);
    attention::all(&mut cases);
    losses::all(&mut cases);
    softmax(&mut cases);
    feed_forward(&mut cases);
    low_rank(&mut cases);
    swiglu(&mut cases);
    rope(&mut cases);
    layer_norm(&mut cases);
    embedding(&mut cases);
    dropout(&mut cases);
    movement::all(&mut cases);
    cast(&mut cases);
    conv::all(&mut cases);
    pool::all(&mut cases);
    batch_norm::all(&mut cases);
    recurrent::all(&mut cases);
    mixed::all(&mut cases);
    cases
}

/// Whether finite differences make sense: not beside a kink, nor of a function of steps, which has no slope.
fn is_smooth(function: &str) -> bool {
    !matches!(function, "relu" | "abs" | "sign" | "floor" | "clamp" | "leaky_relu" | "elu" | "maximum" | "minimum")
}

const LARGE: Values = Values::Uniform(-80.0, 80.0);

fn unary(cases: &mut Vec<Case>) {
    for &(name, op) in UNARY {
        let (values, smooth) = (domain(name), is_smooth(name));
        for shape in [vec![1], vec![17], vec![3, 65], vec![129, 129]] {
            let case = Case::new(format!("{name}/{shape:?}"), vec![(shape, values)], move |x| op(&x[0]));
            cases.push(Case { smooth, ..case });
        }
        if values == AROUND_ZERO {
            // Vulkan grants exp(x) an error of 3 + 2|x| units in the last place: 1e-5 at 80.
            let case = Case::new(format!("{name}/large"), vec![(vec![65], LARGE)], move |x| op(&x[0]));
            cases.push(case.tolerance(2e-6, 2e-5).not_smooth());
        }
    }
}

/// Shapes that are broadcast: b repeated as a whole, then any other way; in rank 6, of a scalar, and of nothing.
const PAIRS: [(&[usize], &[usize]); 22] = [
    (&[1], &[1]),
    (&[17], &[17]),
    (&[3, 65], &[65]),
    (&[2, 3, 5], &[3, 5]),
    (&[129, 4], &[4]),
    (&[5, 7], &[]),
    (&[2, 5000], &[5000]),
    (&[129, 65], &[129, 65]),
    (&[2, 3], &[1, 3]),
    (&[0, 3], &[3]),
    (&[5], &[3, 5]),
    (&[], &[17]),
    (&[3], &[1, 3]),
    (&[65, 1], &[1, 129]),
    (&[129, 1], &[129, 65]),
    (&[2, 1, 5], &[3, 1]),
    (&[2, 3, 4], &[2, 1, 4]),
    (&[4100, 2], &[4100, 1]),
    (&[1, 4100], &[3, 1]),
    (&[2, 1, 3, 1, 2, 1], &[1, 3, 1, 2, 1, 5]),
    (&[0, 1], &[1, 4]),
    (&[0, 1], &[5, 1, 4]),
];

fn binary(cases: &mut Vec<Case>) {
    for (a, b) in PAIRS {
        for &(name, op) in BINARY {
            let inputs = vec![(a.to_vec(), domain(name)), (b.to_vec(), POSITIVE)];
            let case = Case::new(format!("{name}/{a:?}{b:?}"), inputs, move |x| op(&x[0], &x[1]));
            // The gradient of a repeated b sums up to a few hundred terms.
            let case = case.tolerance(2e-5, 1e-5);
            cases.push(Case { smooth: is_smooth(name), ..case });
        }
    }
    // Powers of what is negative, by whole numbers: of these, finite differences leave the domain.
    let apply = |x: &[Tensor]| {
        let exponents: Vec<f32> = (0..7).map(|i| i as f32 - 3.0).collect();
        x[0].pow(&Tensor::from_f32(&exponents, [7], &x[0].device())?)
    };
    // Cubes of reciprocals of numbers down to 0.01.
    let inputs = vec![(vec![65, 7], AROUND_ZERO)];
    cases.push(Case::new("pow/negative", inputs, apply).tolerance(2e-5, 2e-5).not_smooth());
}

/// Comparisons, applied as masks so that there is a gradient to check.
fn compare(cases: &mut Vec<Case>) {
    for (a, b) in PAIRS {
        for &(name, op) in COMPARISONS {
            let inputs = vec![(a.to_vec(), AROUND_ZERO), (b.to_vec(), AROUND_ZERO)];
            let apply = move |x: &[Tensor]| op(&x[0], &x[1])?.mul(&x[0]);
            cases.push(Case::new(format!("{name}/{a:?}{b:?}"), inputs, apply).tolerance(2e-6, 2e-6).not_smooth());
            // Of token ids many are equal.
            let inputs = vec![(a.to_vec(), Values::Ids(4)), (b.to_vec(), Values::Ids(4)), (b.to_vec(), AROUND_ZERO)];
            let apply = move |x: &[Tensor]| op(&x[0], &x[1])?.mul(&x[2]);
            cases.push(Case::new(format!("{name}/ids/{a:?}{b:?}"), inputs, apply).tolerance(2e-5, 2e-6));
        }
        // The mask is of the shape of a, of b, or of one element.
        for (mask, what) in [(a, "a"), (b, "b"), (&[][..], "all")] {
            let inputs = vec![(mask.to_vec(), Values::Ids(2)), (a.to_vec(), AROUND_ZERO), (b.to_vec(), AROUND_ZERO)];
            let apply = |x: &[Tensor]| {
                let zero = Tensor::zeros([], DType::U32, &x[0].device())?;
                x[0].ne(&zero)?.where_cond(&x[1], &x[2])
            };
            let case = Case::new(format!("where_cond/mask of {what}/{a:?}{b:?}"), inputs, apply);
            cases.push(case.tolerance(2e-5, 2e-6));
        }
    }
}

fn matmul(cases: &mut Vec<Case>) {
    // Rounding of a sum of k products of numbers around 1: about 6e-8 sqrt(k) of the sum of their magnitudes, k.
    let tolerance = |k: usize| 2e-7 * k as f32 + 1e-6;
    let sizes = [
        (1, 1, 1),
        (3, 17, 1),
        (17, 3, 65),
        (65, 129, 17),
        (129, 65, 129),
        (64, 64, 64),
        (132, 260, 36),
        // Few tiles and a long k: split between workgroups.
        (20, 24, 1029),
        (260, 132, 2048),
        // The large tiles, with and without overhang.
        (128, 256, 4096),
        (256, 124, 8192),
    ];
    for (m, n, k) in sizes {
        for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let a = if trans_a { vec![k, m] } else { vec![m, k] };
            let b = if trans_b { vec![n, k] } else { vec![k, n] };
            let layout = format!("{}{}", if trans_a { "t" } else { "n" }, if trans_b { "t" } else { "n" });
            let apply = move |x: &[Tensor]| x[0].matmul_transposed(&x[1], trans_a, trans_b);
            let inputs = vec![(a.clone(), AROUND_ZERO), (b.clone(), AROUND_ZERO)];
            let case = Case::new(format!("matmul/{layout}/{m}x{n}x{k}"), inputs, apply);
            cases.push(case.tolerance(tolerance(m.max(n).max(k)), 1e-6));
            if m * n * k > 10_000 {
                continue;
            }
            let batched = |shape: &[usize]| [&[3], shape].concat();
            let inputs = vec![(batched(&a), AROUND_ZERO), (batched(&b), AROUND_ZERO)];
            let case = Case::new(format!("matmul/{layout}/3x{m}x{n}x{k}"), inputs, apply);
            cases.push(case.tolerance(tolerance(m.max(n).max(k)), 1e-6));
            let inputs = vec![(batched(&a), AROUND_ZERO), (b, AROUND_ZERO)];
            let case = Case::new(format!("matmul/{layout}/3x{m}x{n}x{k} shared"), inputs, apply);
            cases.push(case.tolerance(tolerance(3 * m.max(n).max(k)), 1e-6));
        }
    }
    for (rows, k, n) in [(1, 1, 1), (17, 3, 65), (129, 65, 129), (9, 512, 20)] {
        let inputs = vec![(vec![2, rows, k], AROUND_ZERO), (vec![k, n], AROUND_ZERO), (vec![n], AROUND_ZERO)];
        let case = Case::new(format!("linear/2x{rows}x{k}x{n}"), inputs, |x| x[0].linear(&x[1], false, Some(&x[2])));
        cases.push(case.tolerance(tolerance(k.max(n).max(2 * rows)), 1e-6));
    }
}

fn softmax(cases: &mut Vec<Case>) {
    for shape in
        [vec![1], vec![17], vec![17, 1], vec![129, 3], vec![3, 65], vec![2, 3, 129], vec![3, 1025], vec![1, 5000]]
    {
        let inputs = vec![(shape.clone(), AROUND_ZERO)];
        cases.push(Case::new(format!("softmax/{shape:?}"), inputs.clone(), |x| x[0].softmax()));
        // The gradient has the sum of up to 5000 gradients of 1.
        let case = Case::new(format!("log_softmax/{shape:?}"), inputs, |x| x[0].log_softmax());
        cases.push(case.tolerance(2e-5, 2e-6));
    }
    // Overflows unless the largest is subtracted. Vulkan grants exp(x) an error of 3 + 2|x| units in the last place,
    // but e^-160 is nothing beside the largest term.
    let inputs = vec![(vec![17, 65], LARGE)];
    cases.push(Case::new("softmax/large", inputs.clone(), |x| x[0].softmax()).tolerance(2e-6, 2e-5).not_smooth());
    cases.push(Case::new("log_softmax/large", inputs, |x| x[0].log_softmax()).tolerance(2e-5, 2e-5).not_smooth());
}

fn feed_forward(cases: &mut Vec<Case>) {
    for (shape, c, f, d) in
        [(vec![2, 3], 5, 7, 3), (vec![65], 17, 68, 17), (vec![3, 16], 16, 64, 16), (vec![2], 1040, 4, 1030)]
    {
        let sizes = [[&shape[..], &[c]].concat(), vec![c, f], vec![f, d], vec![f], vec![d]];
        let inputs = sizes.map(|shape| (shape, Values::Uniform(-0.5, 0.5)));
        let apply = |x: &[Tensor]| x[0].feed_forward(&x[1], &x[2], Some((&x[3], &x[4])));
        let name = format!("feed_forward/{shape:?}x{c}x{f}x{d}");
        // Two sums of products of up to c terms around a tenth, one after the other.
        cases.push(Case::new(name, inputs.to_vec(), apply).tolerance(2e-5, 1e-5));
        let apply = |x: &[Tensor]| x[0].feed_forward(&x[1], &x[2], None);
        let name = format!("feed_forward/no bias/{shape:?}x{c}x{f}x{d}");
        cases.push(Case::new(name, inputs[..3].to_vec(), apply).tolerance(2e-5, 1e-5));
    }
}

/// The shape and values of the scales of an adapter of this rank for matrices that make these outputs: zero where the
/// columns of one meet the rows of another.
fn scales(rank: usize, outputs: &[(usize, usize)]) -> ([usize; 2], Vec<f32>) {
    let (n, columns) = (outputs.iter().map(|(_, end)| *end).max().unwrap_or(0), rank * outputs.len());
    let of = |i: usize| {
        let (start, end) = outputs[i % columns / rank];
        if (start..end).contains(&(i / columns)) { 1.5 } else { 0.0 }
    };
    ([n, columns], (0..n * columns).map(of).collect())
}

fn low_rank(cases: &mut Vec<Case>) {
    for (shape, k, rank, outputs) in [
        (vec![2, 3], 5, 2, vec![(0, 7)]),
        (vec![65], 17, 4, vec![(0, 20), (28, 36)]),
        (vec![3, 16], 64, 1, vec![(0, 8)]),
    ] {
        let (of_b, scales) = scales(rank, &outputs);
        let [n, columns] = of_b;
        let sizes = [[&shape[..], &[n]].concat(), [&shape[..], &[k]].concat(), vec![columns, k], vec![n, columns]];
        let name = format!("add_low_rank/{shape:?}x{k}x{rank}x{n}");
        let apply = move |x: &[Tensor]| {
            let scales = Tensor::from_f32(&scales, of_b, &x[0].device())?;
            x[0].clone().add_low_rank(&x[1], &x[2], &x[3], &scales)
        };
        cases.push(Case::new(name, sizes.map(|shape| (shape, AROUND_ZERO)).to_vec(), apply).tolerance(2e-5, 1e-5));
    }
}

fn swiglu(cases: &mut Vec<Case>) {
    for shape in [vec![2], vec![3, 10], vec![2, 65, 24], vec![3, 5000]] {
        let inputs = vec![(shape.clone(), AROUND_ZERO)];
        cases.push(Case::new(format!("swiglu/{shape:?}"), inputs, |x| x[0].swiglu()).tolerance(2e-6, 1e-5));
    }
    let inputs = vec![(vec![3, 34], LARGE)];
    cases.push(Case::new("swiglu/large", inputs, |x| x[0].swiglu()).tolerance(2e-6, 2e-5).not_smooth());
}

fn rope(cases: &mut Vec<Case>) {
    // Heads that fill the threads they share and that leave some idle; vectors of four and single elements.
    for (b, t, (n_head, n_kv_head), head_size) in
        [(1, 1, (1, 1), 2), (2, 3, (2, 1), 6), (2, 19, (4, 2), 8), (1, 33, (3, 3), 40), (1, 5, (6, 1), 128)]
    {
        let heads = Heads { n_head, n_kv_head, window: None };
        let qkv = (vec![b, t, (n_head + 2 * n_kv_head) * head_size], AROUND_ZERO);
        // It is no parameter, and gets no gradient.
        let table = move |x: &Tensor| {
            Ok::<_, crate::Error>(draw(&[(vec![t + 1, head_size], AROUND_ZERO)], &x.device(), 7)?.remove(0))
        };
        let name = format!("{b}x{t}/{n_head}:{n_kv_head}x{head_size}");
        let inputs = vec![qkv, (vec![head_size], AROUND_ZERO), (vec![head_size], AROUND_ZERO)];
        let apply = move |x: &[Tensor]| x[0].rope(heads, &table(&x[0])?, None);
        cases.push(Case::new(format!("rope/{name}"), inputs[..1].to_vec(), apply).tolerance(2e-6, 1e-6));
        let apply = move |x: &[Tensor]| x[0].rope(heads, &table(&x[0])?, Some((1e-6, [&x[1], &x[2]])));
        // Gradients of weights sum up to 120 products; a head of two may be small before it is normalized.
        cases.push(Case::new(format!("rope/norm/{name}"), inputs, apply).tolerance(5e-5, 1e-5));
    }
}

fn layer_norm(cases: &mut Vec<Case>) {
    let few = [vec![3], vec![17, 3], vec![3, 17], vec![1, 129], vec![5, 4100], vec![1, 5000]];
    // Chunks of 256, 128, 16 and 32 rows, the last one short. The last two are too wide for a thread to hold its
    // columns.
    let chunks =
        [vec![300, 1], vec![519, 5], vec![37, 130], vec![45, 384], vec![17, 1028], vec![65, 65], vec![2, 129, 20]];
    let others = [vec![2100, 8], vec![19, 2051], vec![17, 8196]];
    for shape in few.into_iter().chain(chunks).chain(others) {
        let c = shape[shape.len() - 1];
        let inputs = vec![(shape.clone(), AROUND_ZERO), (vec![c], AROUND_ZERO), (vec![c], AROUND_ZERO)];
        let apply = |x: &[Tensor]| x[0].layer_norm(&x[1], Some(&x[2]), 1e-5);
        // Gradients of weight and bias are sums over up to 2100 rows, and rows of 3 may have a small variance.
        cases.push(Case::new(format!("layer_norm/{shape:?}"), inputs.clone(), apply).tolerance(5e-5, 1e-5));
        let apply = |x: &[Tensor]| x[0].layer_norm(&x[1], None, 1e-5);
        let case = Case::new(format!("layer_norm/no bias/{shape:?}"), inputs[..2].to_vec(), apply);
        cases.push(case.tolerance(5e-5, 1e-5));
        // The sum and its norm, both used: their sum has a gradient from each.
        let vectors = [vec![c], vec![c], shape.clone()].map(|shape| (shape, AROUND_ZERO));
        let inputs = [vec![(shape.clone(), AROUND_ZERO)], vectors.to_vec()].concat();
        for (dropped, dropout) in [("", None), ("dropout/", Some((0.3, Key::new(5))))] {
            let apply = move |x: &[Tensor]| {
                let (sum, normal) = x[0].add_layer_norm(&x[3], dropout, DType::F32, &x[1], Some(&x[2]), 1e-5)?;
                sum.add(&normal)
            };
            let case = Case::new(format!("add_layer_norm/{dropped}{shape:?}"), inputs.clone(), apply);
            cases.push(case.tolerance(5e-5, 1e-5));
            let inputs = [&inputs[..2], &inputs[3..]].concat();
            let apply = move |x: &[Tensor]| Ok(x[0].add_layer_norm(&x[2], dropout, DType::F32, &x[1], None, 1e-5)?.1);
            let case = Case::new(format!("add_layer_norm/{dropped}no bias/{shape:?}"), inputs.clone(), apply);
            cases.push(case.tolerance(5e-5, 1e-5));
            let apply = move |x: &[Tensor]| Ok(x[0].add_layer_norm(&x[2], dropout, DType::F32, &x[1], None, 1e-5)?.0);
            let case = Case::new(format!("add_layer_norm/{dropped}sum/{shape:?}"), inputs, apply);
            cases.push(case.tolerance(5e-5, 1e-5));
        }
    }
    // Gradients of the weight are sums over up to 300 rows.
    for shape in [vec![3], vec![17, 3], vec![300, 5], vec![37, 130], vec![17, 1028], vec![5, 4100], vec![19, 2051]] {
        let c = shape[shape.len() - 1];
        let inputs = vec![(shape.clone(), AROUND_ZERO), (vec![c], AROUND_ZERO), (shape.clone(), AROUND_ZERO)];
        let apply = |x: &[Tensor]| x[0].rms_norm_to(DType::F32, &x[1], 1e-5);
        cases.push(Case::new(format!("rms_norm_to/{shape:?}"), inputs[..2].to_vec(), apply).tolerance(5e-5, 1e-5));
        let apply = |x: &[Tensor]| {
            let (sum, normal) = x[0].add_rms_norm(&x[2], Some((0.3, Key::new(5))), DType::F32, &x[1], 1e-5)?;
            sum.add(&normal)
        };
        cases.push(Case::new(format!("add_rms_norm/{shape:?}"), inputs, apply).tolerance(5e-5, 1e-5));
    }
    // Of two uses of x, backward comes to the norm last: it adds its gradient to the other's.
    for shape in [vec![5, 3], vec![37, 20]] {
        let inputs = vec![(shape.clone(), AROUND_ZERO), (vec![shape[1]], AROUND_ZERO)];
        let apply = |x: &[Tensor]| x[0].layer_norm(&x[1], None, 1e-5)?.add(&x[0]);
        cases.push(Case::new(format!("layer_norm/one of two uses/{shape:?}"), inputs, apply).tolerance(5e-5, 1e-5));
    }
    // A mean a thousand times the deviation: the difference of the squares would be all rounding. What remains is that
    // of x itself, 3e-5 for values near 1000 whose deviation is 0.6.
    let inputs = vec![(vec![17, 65], Values::Uniform(999.0, 1001.0)), (vec![65], AROUND_ZERO), (vec![65], AROUND_ZERO)];
    let apply = |x: &[Tensor]| x[0].layer_norm(&x[1], Some(&x[2]), 1e-5);
    cases.push(Case::new("layer_norm/far from 0", inputs, apply).tolerance(1e-3, 1e-4).not_smooth());
}

fn embedding(cases: &mut Vec<Case>) {
    // (ids, V, C): one of everything, many repeats, mostly rare ids, rows of four and of other lengths, more positions
    // than are sorted together.
    let shapes: [(&[usize], usize, usize); 9] = [
        (&[1], 1, 1),
        (&[17], 3, 5),
        (&[2, 3], 65, 129),
        (&[3, 129], 7, 64),
        (&[1030], 5000, 12),
        (&[2000], 2, 17),
        (&[65], 17, 260),
        (&[5, 205], 3, 12),
        (&[2500], 65, 130),
    ];
    for (ids, v, c) in shapes {
        let inputs = vec![(vec![v, c], AROUND_ZERO), (ids.to_vec(), Values::Ids(v as u32))];
        let case = Case::new(format!("embedding/{ids:?}/{v}x{c}"), inputs, |x| x[0].embedding(&x[1]));
        // Sums of up to 1000 gradients below 1.
        cases.push(case.tolerance(2e-5, 2e-6));
    }
}

fn dropout(cases: &mut Vec<Case>) {
    let key = Key::new(5);
    for shape in [vec![1], vec![17], vec![3, 65], vec![129, 129]] {
        for p in [0.1, 0.9] {
            let inputs = vec![(shape.clone(), AROUND_ZERO)];
            cases.push(Case::new(format!("dropout/{p}/{shape:?}"), inputs, move |x| x[0].dropout(p, key)));
        }
    }
}

fn cast(cases: &mut Vec<Case>) {
    for (name, shape, values) in [
        ("1", vec![1], AROUND_ZERO),
        ("17", vec![17], AROUND_ZERO),
        ("3x65", vec![3, 65], AROUND_ZERO),
        ("large", vec![129], LARGE),
    ] {
        let through_f16 = |x: &[Tensor]| x[0].to_dtype(DType::F16)?.to_dtype(DType::F32);
        let case = Case::new(format!("cast/{name}"), vec![(shape, values)], through_f16);
        // Drivers may round to either neighbour: one unit in the last of 11 bits. Rounding makes steps.
        cases.push(Case { f16: true, ..case.tolerance(6e-8, 1e-3).not_smooth() });
    }
}
