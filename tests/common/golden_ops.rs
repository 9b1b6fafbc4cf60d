//! The ops of `tests/goldens/ops.json` by their names there.

use rustyflow::ops::{ConvOptions, Criterion, Heads, PoolOptions, RecurrentRef};
use rustyflow::{DType, Device, Result, Tensor};
use serde_json::Value;

/// A loss with the label smoothing and class weights that a case names.
fn with_criterion(attrs: &Value, device: &Device, loss: impl Fn(Criterion) -> Result<Tensor>) -> Result<Tensor> {
    let number = |value: &Value| value.as_f64().unwrap() as f32;
    let weights = attrs.get("class_weights").map(|weights| {
        let weights: Vec<f32> = weights.as_array().unwrap().iter().map(number).collect();
        Tensor::from_f32(&weights, [weights.len()], device).unwrap()
    });
    let label_smoothing = attrs.get("label_smoothing").map_or(0.0, number);
    loss(Criterion { label_smoothing, class_weights: weights.as_ref() })
}

/// Whole numbers as f32.
fn as_f32(x: &Tensor) -> Result<Tensor> {
    if x.dtype() != DType::U32 {
        return Ok(x.clone());
    }
    let values: Vec<f32> = x.to_u32()?.into_iter().map(|n| n as f32).collect();
    Tensor::from_f32(&values, x.shape().clone(), &x.device())
}

fn compare(by: &str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match by {
        "eq" => a.eq(b),
        "ne" => a.ne(b),
        "lt" => a.lt(b),
        "le" => a.le(b),
        "gt" => a.gt(b),
        "ge" => a.ge(b),
        _ => panic!("the golden files have a comparison that this test does not know: {by}"),
    }
}

fn reduce(op: &str, x: &Tensor, dims: &[usize], keepdim: bool, correction: usize) -> Result<Tensor> {
    match (op, keepdim) {
        ("sum", false) => x.sum(dims),
        ("sum", true) => x.sum_keepdim(dims),
        ("mean", false) => x.mean(dims),
        ("mean", true) => x.mean_keepdim(dims),
        ("max", false) => x.max(dims),
        ("max", true) => x.max_keepdim(dims),
        ("min", false) => x.min(dims),
        ("min", true) => x.min_keepdim(dims),
        ("prod", false) => x.prod(dims),
        ("var", false) => x.var(dims, correction),
        ("var", true) => x.var_keepdim(dims, correction),
        ("logsumexp", false) => x.logsumexp(dims),
        ("logsumexp", true) => x.logsumexp_keepdim(dims),
        _ => panic!("the golden files have a reduction that this test does not know: {op}"),
    }
}

/// A stack of layers as `scripts/make_goldens.py` has it: y and what is made of the final states.
fn recurrent(op: &str, x: &[Tensor], layers: usize, directions: usize, bias: bool) -> Result<Tensor> {
    let states = if op == "lstm" { 2 } else { 1 };
    let each = if bias { 4 } else { 2 };
    let (mut y, mut finals) = (x[0].clone(), x[1..1 + states].to_vec());
    for (layer, parameters) in x[1 + states..].chunks(each * directions).enumerate() {
        let directions: Vec<RecurrentRef> = (parameters.chunks(each))
            .map(|p| RecurrentRef { weight_ih: &p[0], weight_hh: &p[1], bias: bias.then(|| [&p[2], &p[3]]) })
            .collect();
        (y, finals) = match op {
            "lstm" => y.lstm(layer, &directions, [&finals[0], &finals[1]]).map(|(y, finals)| (y, finals.to_vec()))?,
            "gru" => y.gru(layer, &directions, &finals[0]).map(|(y, h)| (y, vec![h]))?,
            _ => y.rnn(layer, &directions, &finals[0]).map(|(y, h)| (y, vec![h]))?,
        };
    }
    for (number, last) in finals.iter().enumerate() {
        let &[_, batch, hidden] = &last.shape()[..] else { unreachable!("(L D, B, H)") };
        let last = last.reshape([layers, directions, batch, hidden])?.permute(&[0, 2, 1, 3])?;
        let last = last.reshape([layers, batch, directions * hidden])?.sum(0)?;
        y = y.add(&last.scale((2 + number) as f32)?)?;
    }
    Ok(y)
}

/// Height and width of what a case names, of sequences the default and the only number.
fn pair(attrs: &Value, name: &str, default: usize) -> [usize; 2] {
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    match attrs.get(name).and_then(Value::as_array).map(Vec::as_slice) {
        None => [default; 2],
        Some([length]) => [default, number(length)],
        Some(both) => [number(&both[0]), number(&both[1])],
    }
}

fn conv_options(attrs: &Value) -> ConvOptions {
    let [stride, padding, dilation] =
        [("stride", 1), ("padding", 0), ("dilation", 1)].map(|(name, default)| pair(attrs, name, default));
    let groups = attrs.get("groups").map_or(1, |groups| groups.as_u64().unwrap() as usize);
    ConvOptions { stride, padding, dilation, groups }
}

fn pool_options(attrs: &Value) -> PoolOptions {
    let plain = PoolOptions::new(pair(attrs, "kernel_size", 1));
    let stride = if attrs.get("stride").is_some() { pair(attrs, "stride", 1) } else { plain.stride };
    let [padding, dilation] = [("padding", 0), ("dilation", 1)].map(|(name, default)| pair(attrs, name, default));
    let count_include_pad = attrs.get("count_include_pad").is_none_or(|flag| flag.as_bool().unwrap());
    PoolOptions { stride, padding, dilation, count_include_pad, ..plain }
}

/// With running statistics that are no inputs; what becomes of them is added to each channel.
fn batch_norm(x: &[Tensor], momentum: Option<f32>) -> Result<Tensor> {
    let shape = x[0].shape().clone();
    let channels = shape[1];
    let between = |from: f32, to: f32| {
        let values = (0..channels).map(|i| from + (to - from) * i as f32 / (channels - 1) as f32);
        Tensor::from_f32(&values.collect::<Vec<_>>(), [channels], &x[0].device())
    };
    let running = [between(-1.0, 1.0)?, between(0.5, 2.0)?];
    let y = x[0].batch_norm([&running[0], &running[1]], &x[1], &x[2], momentum, 1e-5)?;
    let last = running[0].scale(2.0)?.add(&running[1].scale(3.0)?)?;
    // The channels last, and back.
    let rows = y.reshape([shape[0], channels, shape[2..].iter().product()])?.permute(&[0, 2, 1])?;
    rows.add(&last)?.permute(&[0, 2, 1])?.reshape(shape)
}

/// Applies the op that a case names.
pub fn apply(op: &str, attrs: &Value, x: &[Tensor]) -> Result<Tensor> {
    let flag = |name: &str| attrs[name].as_bool().unwrap();
    let number = |name: &str| attrs[name].as_f64().unwrap() as f32;
    let size = |name: &str| attrs[name].as_u64().unwrap() as usize;
    let sizes = |name: &str| -> Vec<usize> {
        attrs[name].as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect()
    };
    match op {
        "matmul" => x[0].matmul_transposed(&x[1], flag("transpose_a"), flag("transpose_b")),
        "add" => x[0].add(&x[1]),
        "sub" => x[0].sub(&x[1]),
        "mul" => x[0].mul(&x[1]),
        "div" => x[0].div(&x[1]),
        "maximum" => x[0].maximum(&x[1]),
        "minimum" => x[0].minimum(&x[1]),
        "pow" => x[0].pow(&as_f32(&x[1])?),
        "compare" => compare(attrs["by"].as_str().unwrap(), &x[0], &x[1])?.where_cond(&x[2], &x[3]),
        "scale" => x[0].scale(number("factor")),
        "neg" => x[0].neg(),
        "exp" => x[0].exp(),
        "log" => x[0].log(),
        "sqrt" => x[0].sqrt(),
        "recip" => x[0].recip(),
        "sin" => x[0].sin(),
        "cos" => x[0].cos(),
        "relu" => x[0].relu(),
        "gelu" => x[0].gelu(),
        "silu" => x[0].silu(),
        "sigmoid" => x[0].sigmoid(),
        "tanh" => x[0].tanh(),
        "abs" => x[0].abs(),
        "sign" => x[0].sign(),
        "floor" => x[0].floor(),
        "clamp" => {
            let bound = |name: &str, open: f32| attrs.get(name).map_or(open, |_| number(name));
            x[0].clamp(bound("min", f32::NEG_INFINITY), bound("max", f32::INFINITY))
        }
        "powf" => x[0].powf(number("exponent")),
        "leaky_relu" => x[0].leaky_relu(number("negative_slope")),
        "elu" => x[0].elu(number("alpha")),
        "softplus" => x[0].softplus(),
        "hardswish" => x[0].hardswish(),
        "softmax" => x[0].softmax(),
        "log_softmax" => x[0].log_softmax(),
        "add_layer_norm" => {
            let (sum, normal) = x[0].add_layer_norm(&x[1], None, DType::F32, &x[2], Some(&x[3]), number("eps"))?;
            sum.add(&normal)
        }
        "feed_forward" => x[0].feed_forward(&x[1], &x[2], Some((&x[3], &x[4]))),
        "layer_norm" => x[0].layer_norm(&x[1], Some(&x[2]), number("eps")),
        "attention" => {
            assert!(flag("causal"), "all attention here is causal");
            x[0].causal_attention(Heads::multi_head(size("n_head")), None, None)
        }
        "embedding" => x[1].embedding(&x[0]),
        "cross_entropy" => with_criterion(attrs, &x[0].device(), |criterion| x[0].cross_entropy(&x[1], criterion)),
        "linear_cross_entropy" => {
            with_criterion(attrs, &x[0].device(), |criterion| x[0].linear_cross_entropy(&x[1], &x[2], criterion, None))
        }
        "sum" | "mean" | "max" | "min" | "prod" | "var" | "logsumexp" => {
            let dims = if attrs["dim"].is_array() { sizes("dim") } else { vec![size("dim")] };
            let correction = attrs.get("correction").map_or(0, |correction| correction.as_u64().unwrap() as usize);
            reduce(op, &x[0], &dims, attrs.get("keepdim").is_some(), correction)
        }
        "argmax" => x[0].gather(size("dim"), &x[0].argmax_keepdim(size("dim"))?),
        "argmin" => x[0].gather(size("dim"), &x[0].argmin_keepdim(size("dim"))?),
        "permute" => x[0].permute(&sizes("dims")),
        "narrow" => x[0].narrow(size("dim"), size("start"), size("length")),
        "slice" => x[0].slice(size("dim"), size("start")..size("end"), size("step")),
        "split" => Ok(x[0].split(size("size"), size("dim"))?.remove(size("part"))),
        "flip" => x[0].flip(&sizes("dims")),
        "expand" => x[0].expand(sizes("shape")),
        "pad" => {
            let pair = |pair: &Value| (pair[0].as_u64().unwrap() as usize, pair[1].as_u64().unwrap() as usize);
            x[0].pad(&attrs["padding"].as_array().unwrap().iter().map(pair).collect::<Vec<_>>(), number("value"))
        }
        "cat" => Tensor::cat(&x.iter().collect::<Vec<_>>(), size("dim")),
        "stack" => Tensor::stack(&x.iter().collect::<Vec<_>>(), size("dim")),
        "tril" => x[0].tril(attrs["diagonal"].as_i64().unwrap()),
        "triu" => x[0].triu(attrs["diagonal"].as_i64().unwrap()),
        "gather" => x[0].gather(size("dim"), &x[1]),
        "index_select" => x[0].index_select(size("dim"), &x[1]),
        "scatter_add" => x[0].scatter_add(size("dim"), &x[1], &x[2]),
        "rnn" | "lstm" | "gru" => recurrent(op, x, size("layers"), size("directions"), flag("bias")),
        "conv2d" => x[0].conv2d(&x[1], x.get(2), conv_options(attrs)),
        "conv_transpose2d" => {
            let output_padding = pair(attrs, "output_padding", 0);
            x[0].conv_transpose2d(&x[1], x.get(2), conv_options(attrs), output_padding)
        }
        "conv1d" => x[0].conv1d(&x[1], x.get(2), conv_options(attrs)),
        "max_pool2d" => x[0].max_pool2d(pool_options(attrs)),
        "avg_pool2d" => x[0].avg_pool2d(pool_options(attrs)),
        "adaptive_avg_pool2d" => x[0].adaptive_avg_pool2d(pair(attrs, "output_size", 1)),
        "max_pool1d" => x[0].max_pool1d(pool_options(attrs)),
        "avg_pool1d" => x[0].avg_pool1d(pool_options(attrs)),
        "adaptive_avg_pool1d" => x[0].adaptive_avg_pool1d(pair(attrs, "output_size", 1)[1]),
        "batch_norm" => batch_norm(x, flag("training").then_some(number("momentum"))),
        "group_norm" => x[0].group_norm(size("groups"), &x[1], &x[2], 1e-5),
        _ => panic!("the golden files have an op that this test does not know: {op}"),
    }
}
