//! The ops of `goldens/ops.json` by their names there.

use rustyflow_tensor::nn::{DropoutLayer, Module, MultiHeadAttention, init_keys};
use rustyflow_tensor::ops::{
    AttentionMask, AttentionOptions, ConvOptions, Criterion, Heads, PoolOptions, RecurrentRef, Reduction,
};
use rustyflow_tensor::{DType, Device, Result, Tensor};
use serde_json::Value;

/// A list of numbers that a case may have, on a device.
fn numbers(attrs: &Value, name: &str, device: &Device) -> Option<Tensor> {
    let numbers = attrs.get(name)?.as_array().unwrap().iter();
    let numbers: Vec<f32> = numbers.map(|value| value.as_f64().unwrap() as f32).collect();
    Some(Tensor::from_f32(&numbers, [numbers.len()], device).unwrap())
}

/// A loss with the label smoothing and class weights that a case names.
fn with_criterion(attrs: &Value, device: &Device, loss: impl Fn(Criterion) -> Result<Tensor>) -> Result<Tensor> {
    let weights = numbers(attrs, "class_weights", device);
    let label_smoothing = attrs.get("label_smoothing").map_or(0.0, |value| value.as_f64().unwrap() as f32);
    loss(Criterion { label_smoothing, class_weights: weights.as_ref() })
}

fn dot_product_attention(attrs: &Value, x: &[Tensor]) -> Result<Tensor> {
    let kept = x.get(3).filter(|mask| mask.dtype() == DType::U32).map(as_f32).transpose()?;
    let mask = match &kept {
        Some(kept) => Some(AttentionMask::Keep(kept)),
        None => x.get(3).map(AttentionMask::Additive),
    };
    let scale = attrs.get("scale").map(|scale| scale.as_f64().unwrap() as f32);
    let options = AttentionOptions { mask, causal: attrs.get("is_causal").is_some(), scale, dropout: None };
    x[0].scaled_dot_product_attention(&x[1], &x[2], options)
}

/// Of one sequence or of three, which the parameters follow.
fn multi_head_attention(x: &[Tensor], n_head: usize, causal: bool) -> Result<Tensor> {
    let (sequences, parameters) = x.split_at(x.len() - 4);
    let width = sequences[0].shape()[2];
    let mut layer = MultiHeadAttention::new(width, n_head, true, DropoutLayer::new(0.0, 0), init_keys(1))?;
    let mut given = parameters.iter();
    let mut names = Vec::new();
    layer.visit_parameters("", &mut |name, parameter| {
        parameter.value = given.next().unwrap().clone();
        names.push(name.to_string());
    });
    assert_eq!(names, ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]);
    match sequences {
        [x] => layer.forward(x, None, causal),
        [q, k, v] => layer.forward_cross(q, k, v, None, causal),
        _ => unreachable!("one sequence or three"),
    }
}

fn reduction(attrs: &Value) -> Reduction {
    match attrs["reduction"].as_str().unwrap() {
        "mean" => Reduction::Mean,
        "sum" => Reduction::Sum,
        "none" => Reduction::None,
        other => panic!("the golden files have a reduction that this test does not know: {other}"),
    }
}

fn loss(op: &str, attrs: &Value, x: &[Tensor]) -> Result<Tensor> {
    let (by, device) = (reduction(attrs), x[0].device());
    let number = |name: &str| attrs[name].as_f64().unwrap() as f32;
    match op {
        "mse_loss" => x[0].mse_loss(&x[1], by),
        "l1_loss" => x[0].l1_loss(&x[1], by),
        "huber_loss" => x[0].huber_loss(&x[1], number("delta"), by),
        "smooth_l1_loss" => x[0].smooth_l1_loss(&x[1], number("beta"), by),
        "kl_div" => x[0].kl_div(&x[1], attrs.get("log_target").is_some(), by),
        "binary_cross_entropy_with_logits" => {
            let weight = numbers(attrs, "pos_weight", &device);
            x[0].binary_cross_entropy_with_logits(&x[1], weight.as_ref(), by)
        }
        "nll_loss" => x[0].nll_loss(&x[1], numbers(attrs, "class_weights", &device).as_ref(), by),
        "cross_entropy_loss" => {
            with_criterion(attrs, &device, |criterion| x[0].cross_entropy_loss(&x[1], criterion, by))
        }
        _ => {
            let target: Vec<f32> = (0..x[0].shape()[0]).map(|i| if i % 3 == 2 { -1.0 } else { 1.0 }).collect();
            let target = Tensor::from_f32(&target, [target.len()], &device)?;
            x[0].cosine_embedding_loss(&x[1], &target, number("margin"), by)
        }
    }
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

fn reduce(op: &str, x: &Tensor, dims: &[i64], keepdim: bool, correction: usize) -> Result<Tensor> {
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
    PoolOptions { stride, padding, dilation, count_include_pad, ceil_mode: attrs.get("ceil_mode").is_some(), ..plain }
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
    let rows =
        y.to_dtype(DType::F32)?.reshape([shape[0], channels, shape[2..].iter().product()])?.permute(&[0, 2, 1])?;
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
    let dim = || attrs["dim"].as_i64().unwrap();
    let dims =
        |name: &str| -> Vec<i64> { attrs[name].as_array().unwrap().iter().map(|dim| dim.as_i64().unwrap()).collect() };
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
        "scaled_dot_product_attention" => dot_product_attention(attrs, x),
        "multi_head_attention" => multi_head_attention(x, size("n_head"), flag("causal")),
        "embedding" => x[1].embedding(&x[0]),
        "cross_entropy" => with_criterion(attrs, &x[0].device(), |criterion| x[0].cross_entropy(&x[1], criterion)),
        "linear_cross_entropy" => with_criterion(attrs, &x[0].device(), |criterion| {
            x[0].linear_cross_entropy_with_bias(&x[1], x.get(3), &x[2], criterion, None)
        }),
        "mse_loss"
        | "l1_loss"
        | "huber_loss"
        | "smooth_l1_loss"
        | "kl_div"
        | "binary_cross_entropy_with_logits"
        | "nll_loss"
        | "cross_entropy_loss"
        | "cosine_embedding_loss" => loss(op, attrs, x),
        "sum" | "mean" | "max" | "min" | "prod" | "var" | "logsumexp" => {
            let dims = if attrs["dim"].is_array() { dims("dim") } else { vec![dim()] };
            let correction = attrs.get("correction").map_or(0, |correction| correction.as_u64().unwrap() as usize);
            reduce(op, &x[0], &dims, attrs.get("keepdim").is_some(), correction)
        }
        "argmax" => x[0].gather(dim(), &x[0].argmax_keepdim(dim())?),
        "argmin" => x[0].gather(dim(), &x[0].argmin_keepdim(dim())?),
        "permute" => x[0].permute(&dims("dims")),
        "narrow" => x[0].narrow(dim(), size("start"), size("length")),
        "slice" => x[0].slice(dim(), size("start")..size("end"), size("step")),
        "split" => Ok(x[0].split(size("size"), dim())?.remove(size("part"))),
        "flip" => x[0].flip(&dims("dims")),
        "expand" => x[0].expand(sizes("shape")),
        "pad" => {
            let pair = |pair: &Value| (pair[0].as_u64().unwrap() as usize, pair[1].as_u64().unwrap() as usize);
            x[0].pad(&attrs["padding"].as_array().unwrap().iter().map(pair).collect::<Vec<_>>(), number("value"))
        }
        "cat" => Tensor::cat(&x.iter().collect::<Vec<_>>(), dim()),
        "stack" => Tensor::stack(&x.iter().collect::<Vec<_>>(), dim()),
        "tril" => x[0].tril(attrs["diagonal"].as_i64().unwrap()),
        "triu" => x[0].triu(attrs["diagonal"].as_i64().unwrap()),
        "gather" => x[0].gather(dim(), &x[1]),
        "index_select" => x[0].index_select(dim(), &x[1]),
        "scatter_add" => x[0].scatter_add(dim(), &x[1], &x[2]),
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
