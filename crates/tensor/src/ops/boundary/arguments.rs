//! Invalid arguments other than tensors, by op family, and methods that are no ops.

use super::*;
use std::ops::Range;

pub(super) type Attempt = fn(&Device) -> Result<()>;

/// Invalid arguments, each with the method that must refuse it.
pub(super) fn other_arguments() -> Vec<(&'static str, Attempt)> {
    [dimensions(), movement(), norms_and_losses(), attention(), images(), recurrent(), tensors()].concat()
}

/// A shape whose number of elements wraps around to 0.
const WRAPS: [usize; 2] = [1 << (usize::BITS / 2); 2];

fn x(shape: &[usize], device: &Device) -> Tensor {
    Tensor::zeros(shape, DType::F32, device).unwrap()
}

fn ids(device: &Device) -> Tensor {
    Tensor::zeros([2, 3], DType::U32, device).unwrap()
}

fn smoothed_by(label_smoothing: f32, device: &Device) -> Result<()> {
    let targets = Tensor::zeros([2], DType::U32, device)?;
    let criterion = Criterion { label_smoothing, class_weights: None };
    x(&[2, 3], device).cross_entropy(&targets, criterion).map(drop)
}

/// Of reductions, and those counted from the last.
fn dimensions() -> Vec<(&'static str, Attempt)> {
    vec![
        ("sum", |d| x(&[2, 3], d).sum(2).map(drop)),
        ("mean", |d| x(&[2, 3], d).mean(usize::MAX).map(drop)),
        ("max", |d| x(&[2, 3], d).max(2).map(drop)),
        ("max", |d| x(&[2, 0], d).max(1).map(drop)),
        ("min", |d| x(&[2, 0], d).min(..).map(drop)),
        ("argmax", |d| x(&[2, 0], d).argmax(1).map(drop)),
        ("sum", |d| x(&[2, 3], d).sum([0, 0]).map(drop)),
        ("var", |d| x(&[2, 3], d).var([0, 2], 1).map(drop)),
        ("logsumexp", |d| x(&[2, 3], d).logsumexp(usize::MAX).map(drop)),
        ("prod", |d| x(&[2; 7], d).prod([0, 2]).map(drop)),
        ("sum", |d| x(&[2, 3], d).sum(-3).map(drop)),
        ("sum", |d| x(&[], d).sum(-1).map(drop)),
        ("mean", |d| x(&[2, 3], d).mean(i64::MIN).map(drop)),
        ("var", |d| x(&[2, 3], d).var([1, -1], 1).map(drop)),
        ("permute", |d| x(&[2, 3], d).permute(&[0, -2]).map(drop)),
        ("permute", |d| x(&[2, 3], d).permute(&[0, -3]).map(drop)),
        ("narrow", |d| x(&[2, 3], d).narrow(-3, 0, 1).map(drop)),
        ("slice", |d| x(&[2, 3], d).slice(isize::MIN, 0..1, 1).map(drop)),
        ("split", |d| x(&[2, 3], d).split(1, -3).map(drop)),
        ("flip", |d| x(&[2, 3], d).flip(&[-3]).map(drop)),
        ("flip", |d| x(&[2, 3], d).flip(&[0, -2]).map(drop)),
        ("cat", |d| Tensor::cat(&[&x(&[2, 3], d)], -3).map(drop)),
        ("stack", |d| Tensor::stack(&[&x(&[2, 3], d)], -4).map(drop)),
        ("gather", |d| x(&[2, 3], d).gather(-3, &ids(d)).map(drop)),
        ("index_select", |d| x(&[2, 3], d).index_select(-3, &ids(d).reshape([6])?).map(drop)),
        ("scatter_add", |d| x(&[2, 3], d).scatter_add(i64::MIN, &ids(d), &x(&[2, 3], d)).map(drop)),
    ]
}

fn movement() -> Vec<(&'static str, Attempt)> {
    vec![
        ("permute", |d| x(&[2, 3], d).permute(&[0]).map(drop)),
        ("permute", |d| x(&[2, 3], d).permute(&[0, 0]).map(drop)),
        ("permute", |d| x(&[2, 3], d).permute(&[1, 2]).map(drop)),
        ("permute", |d| x(&[2, 3], d).permute(&[0, 1, usize::MAX]).map(drop)),
        ("permute", |d| x(&[1; 7], d).permute(&[6, 5, 4, 3, 2, 1, 0]).map(drop)),
        ("add", |d| x(&[2, 1, 2, 1, 2, 1, 2], d).add(&x(&[1, 2, 1, 2, 1, 2, 1], d)).map(drop)),
        ("narrow", |d| x(&[2, 3], d).narrow(2, 0, 1).map(drop)),
        ("narrow", |d| x(&[2, 3], d).narrow(1, 1, 3).map(drop)),
        ("narrow", |d| x(&[2, 3], d).narrow(1, 1, usize::MAX).map(drop)),
        ("narrow", |d| x(&[1; 7], d).narrow(0, 0, 1).map(drop)),
        ("slice", |d| x(&[2, 3], d).slice(1, 0..3, 0).map(drop)),
        ("slice", |d| x(&[2, 3], d).slice(1, Range { start: 2, end: 1 }, 1).map(drop)),
        ("slice", |d| x(&[2, 3], d).slice(usize::MAX, 0..1, 1).map(drop)),
        ("split", |d| x(&[2, 3], d).split(0, 1).map(drop)),
        ("split", |d| x(&[2, 3], d).split(1, 2).map(drop)),
        ("flip", |d| x(&[2, 3], d).flip(&[2]).map(drop)),
        ("flip", |d| x(&[2, 3], d).flip(&[1, 1]).map(drop)),
        ("expand", |d| x(&[2, 3], d).expand([3]).map(drop)),
        ("expand", |d| x(&[2, 3], d).expand([3, 3]).map(drop)),
        ("expand", |d| x(&[1], d).expand(WRAPS).map(drop)),
        ("expand", |d| x(&[1], d).expand([1; 7]).map(drop)),
        ("pad", |d| x(&[2, 3], d).pad(&[(1, 1)], 0.0).map(drop)),
        ("pad", |d| x(&[2, 3], d).pad(&[(0, 0), (usize::MAX, 0)], 0.0).map(drop)),
        ("pad", |d| x(&[2, 3], d).pad(&[(WRAPS[0], 0), (WRAPS[0], 0)], 0.0).map(drop)),
        ("cat", |_| Tensor::cat(&[], 0).map(drop)),
        ("cat", |d| Tensor::cat(&[&x(&[2, 3], d)], 2).map(drop)),
        ("cat", |d| Tensor::cat(&[&x(&[], d)], 0).map(drop)),
        ("stack", |_| Tensor::stack(&[], 0).map(drop)),
        ("stack", |d| Tensor::stack(&[&x(&[2, 3], d)], 3).map(drop)),
        ("stack", |d| Tensor::stack(&[&x(&[1; 6], d)], 0).map(drop)),
        ("gather", |d| x(&[2, 3], d).gather(2, &ids(d)).map(drop)),
        ("index_select", |d| x(&[2, 3], d).index_select(2, &ids(d).reshape([6])?).map(drop)),
        ("scatter_add", |d| x(&[2, 3], d).scatter_add(usize::MAX, &ids(d), &x(&[2, 3], d)).map(drop)),
        ("reshape", |d| x(&[2, 3], d).reshape([7]).map(drop)),
        ("reshape", |d| x(&[2, 3], d).reshape([usize::MAX, 2]).map(drop)),
        ("reshape", |d| x(&[0], d).reshape(WRAPS).map(drop)),
        ("to_dtype", |d| x(&[2, 3], d).to_dtype(DType::U32).map(drop)),
        ("to_dtype", |d| ids(d).to_dtype(DType::F32).map(drop)),
        ("cast_into", |d| x(&[2, 3], d).cast_into(&x(&[7], d))),
    ]
}

fn norms_and_losses() -> Vec<(&'static str, Attempt)> {
    vec![
        ("dropout", |d| x(&[2, 3], d).dropout(1.0, KEY).map(drop)),
        ("dropout", |d| x(&[2, 3], d).dropout(-0.1, KEY).map(drop)),
        ("dropout", |d| x(&[2, 3], d).dropout(f32::NAN, KEY).map(drop)),
        ("dropout", |d| ids(d).dropout(0.0, KEY).map(drop)),
        ("layer_norm_to", |d| x(&[2, 3], d).layer_norm_to(DType::U32, &x(&[3], d), None, 1e-5).map(drop)),
        ("add_layer_norm", |d| {
            x(&[2, 3], d).add_layer_norm(&x(&[2, 3], d), None, DType::U32, &x(&[3], d), None, 1e-5).map(drop)
        }),
        ("add_layer_norm", |d| {
            let dropout = Some((1.0, KEY));
            x(&[2, 3], d).add_layer_norm(&x(&[2, 3], d), dropout, DType::F32, &x(&[3], d), None, 1e-5).map(drop)
        }),
        ("cross_entropy", |d| smoothed_by(1.1, d)),
        ("cross_entropy", |d| smoothed_by(-0.1, d)),
        ("cross_entropy", |d| smoothed_by(f32::NAN, d)),
        ("linear_cross_entropy", |d| {
            let targets = Tensor::zeros([2], DType::U32, d)?;
            let weights = x(&[5], d).requires_grad()?;
            let criterion = Criterion { class_weights: Some(&weights), ..Criterion::default() };
            x(&[2, 3], d).linear_cross_entropy(&x(&[5, 3], d), &targets, criterion, None).map(drop)
        }),
        ("huber_loss", |d| x(&[2], d).huber_loss(&x(&[2], d), 0.0, Reduction::None).map(drop)),
        ("huber_loss", |d| x(&[2], d).huber_loss(&x(&[2], d), f32::NAN, Reduction::None).map(drop)),
        ("smooth_l1_loss", |d| x(&[2], d).smooth_l1_loss(&x(&[2], d), -1.0, Reduction::None).map(drop)),
        ("binary_cross_entropy_with_logits", |d| {
            let weight = x(&[2], d).requires_grad()?;
            x(&[2], d).binary_cross_entropy_with_logits(&x(&[2], d), Some(&weight), Reduction::None).map(drop)
        }),
        ("nll_loss", |d| {
            let weights = x(&[3], d).requires_grad()?;
            x(&[6, 3], d).nll_loss(&ids(d), Some(&weights), Reduction::None).map(drop)
        }),
        ("swiglu", |d| x(&[2, 3], d).swiglu().map(drop)),
        ("swiglu", |d| x(&[], d).swiglu().map(drop)),
        ("swiglu", |d| ids(d).swiglu().map(drop)),
        ("rms_norm_to", |d| x(&[2, 3], d).rms_norm_to(DType::U32, &x(&[3], d), 1e-5).map(drop)),
        ("rms_norm_to", |d| x(&[2, 0], d).rms_norm_to(DType::F32, &x(&[0], d), 1e-5).map(drop)),
        ("add_rms_norm", |d| {
            let dropout = Some((1.0, KEY));
            x(&[2, 3], d).add_rms_norm(&x(&[2, 3], d), dropout, DType::F32, &x(&[3], d), 1e-5).map(drop)
        }),
    ]
}

fn attention() -> Vec<(&'static str, Attempt)> {
    vec![
        ("rope", |d| x(&[1, 2, 12], d).rope(GROUPED, &x(&[2, 3], d), None).map(drop)),
        ("rope", |d| x(&[1, 2, 16], d).rope(GROUPED, &x(&[1, 4], d), None).map(drop)),
        ("rope", |d| x(&[2, 16], d).rope(GROUPED, &x(&[2, 4], d), None).map(drop)),
        ("rope", |d| x(&[1, 2, 4 * 130], d).rope(GROUPED, &x(&[2, 130], d), None).map(drop)),
        ("rope", |d| x(&[1, 2, 16], d).rope(Heads::multi_head(usize::MAX), &x(&[2, 4], d), None).map(drop)),
        ("rope", |d| x(&[1, 2, 16], d).rope(Heads::multi_head(0), &x(&[2, 4], d), None).map(drop)),
        ("rope_append", |d| {
            x(&[1, 2, 16], d).rope_append(GROUPED, &x(&[9, 4], d), None, &x(&[1, 5, 8], d), 4).map(drop)
        }),
        ("rope_append", |d| {
            x(&[1, 2, 16], d).rope_append(GROUPED, &x(&[2, 4], d), None, &x(&[1, 5, 8], d), usize::MAX).map(drop)
        }),
        ("causal_attention", |d| x(&[1, 2, 12], d).causal_attention(Heads::multi_head(0), None, None).map(drop)),
        ("causal_attention", |d| x(&[1, 2, 12], d).causal_attention(Heads::multi_head(3), None, None).map(drop)),
        ("causal_attention", |d| {
            x(&[1, 2, 12], d).causal_attention(Heads::multi_head(usize::MAX), None, None).map(drop)
        }),
        ("causal_attention", |d| {
            x(&[1, 2, 12], d).causal_attention(Heads::multi_head(usize::MAX / 3 + 1), None, None).map(drop)
        }),
        ("causal_attention", |d| {
            x(&[1, 2, 12], d).causal_attention(Heads::multi_head(2), None, Some((1.0, KEY))).map(drop)
        }),
        ("causal_attention", |d| {
            x(&[1, 2, 12], d).causal_attention(Heads::multi_head(2), None, Some((f32::NAN, KEY))).map(drop)
        }),
        ("causal_attention", |d| x(&[1, 2, 3 * 129], d).causal_attention(Heads::multi_head(1), None, None).map(drop)),
        ("scaled_dot_product_attention", |d| {
            let options = AttentionOptions { dropout: Some((1.0, KEY)), ..AttentionOptions::default() };
            x(&[2, 3, 4], d).scaled_dot_product_attention(&x(&[2, 3, 4], d), &x(&[2, 3, 4], d), options).map(drop)
        }),
        ("scaled_dot_product_attention", |d| {
            let (causal, dropout) = (true, Some((f32::NAN, KEY)));
            let options = AttentionOptions { causal, dropout, ..AttentionOptions::default() };
            x(&[2, 3, 4], d).scaled_dot_product_attention(&x(&[2, 3, 4], d), &x(&[2, 3, 4], d), options).map(drop)
        }),
        ("cached_attention", |d| {
            x(&[1, 2, 12], d).cached_attention(Heads::multi_head(2), &x(&[1, 5, 8], d), 4).map(drop)
        }),
        ("cached_attention", |d| {
            x(&[1, 2, 12], d).cached_attention(Heads::multi_head(2), &x(&[1, 5, 8], d), usize::MAX).map(drop)
        }),
    ]
}

fn images() -> Vec<(&'static str, Attempt)> {
    vec![
        ("conv2d", |d| convolved(ConvOptions { stride: [0, 1], ..CONV }, d)),
        ("conv2d", |d| convolved(ConvOptions { stride: [usize::MAX; 2], ..CONV }, d)),
        ("conv2d", |d| convolved(ConvOptions { padding: [usize::MAX; 2], ..CONV }, d)),
        ("conv2d", |d| convolved(ConvOptions { dilation: [1, 0], ..CONV }, d)),
        ("conv2d", |d| convolved(ConvOptions { dilation: [usize::MAX; 2], ..CONV }, d)),
        ("conv2d", |d| convolved(ConvOptions { groups: 0, ..CONV }, d)),
        ("conv2d", |d| convolved(ConvOptions { groups: usize::MAX, ..CONV }, d)),
        ("conv_transpose2d", |d| transposed(CONV, [2, 0], d)),
        ("conv_transpose2d", |d| transposed(CONV, [usize::MAX; 2], d)),
        ("conv_transpose2d", |d| transposed(ConvOptions { stride: [usize::MAX; 2], ..CONV }, [0; 2], d)),
        ("conv_transpose2d", |d| transposed(ConvOptions { padding: [usize::MAX; 2], ..CONV }, [0; 2], d)),
        ("conv_transpose2d", |d| transposed(ConvOptions { padding: [99; 2], ..CONV }, [0; 2], d)),
        ("conv_transpose2d", |d| transposed(ConvOptions { groups: usize::MAX, ..CONV }, [0; 2], d)),
        ("max_pool2d", |d| pooled(PoolOptions { padding: [2; 2], ..PoolOptions::new([3; 2]) }, d)),
        ("max_pool2d", |d| pooled(PoolOptions::new([0, 2]), d)),
        ("max_pool2d", |d| pooled(PoolOptions::new([6, 2]), d)),
        ("max_pool2d", |d| pooled(PoolOptions { stride: [0; 2], ..PoolOptions::new([2; 2]) }, d)),
        ("max_pool2d", |d| pooled(PoolOptions { stride: [usize::MAX; 2], ..PoolOptions::new([2; 2]) }, d)),
        ("max_pool2d", |d| pooled(PoolOptions { dilation: [usize::MAX; 2], ..PoolOptions::new([2; 2]) }, d)),
        ("max_pool2d", |d| pooled(PoolOptions { dilation: [0; 2], ..PoolOptions::new([2; 2]) }, d)),
        ("max_pool2d", |d| pooled(PoolOptions { padding: [usize::MAX; 2], ..PoolOptions::new([usize::MAX; 2]) }, d)),
        ("max_pool2d", |d| pooled(PoolOptions { stride: [2; 2], ceil_mode: true, ..PoolOptions::new([7, 2]) }, d)),
        ("max_pool2d", |d| pooled(PoolOptions { stride: [0; 2], ceil_mode: true, ..PoolOptions::new([2; 2]) }, d)),
        ("max_pool2d", |d| {
            pooled(PoolOptions { stride: [usize::MAX; 2], ceil_mode: true, ..PoolOptions::new([2; 2]) }, d)
        }),
        ("max_pool2d", |d| pooled(PoolOptions { ceil_mode: true, ..PoolOptions::new([usize::MAX; 2]) }, d)),
        ("max_pool2d", |d| {
            pooled(
                PoolOptions { padding: [usize::MAX / 4; 2], ceil_mode: true, ..PoolOptions::new([usize::MAX; 2]) },
                d,
            )
        }),
        ("avg_pool2d", |d| {
            let options = PoolOptions { dilation: [2; 2], ..PoolOptions::new([2; 2]) };
            x(&[2, 3, 5, 6], d).avg_pool2d(options).map(drop)
        }),
        ("adaptive_avg_pool2d", |d| x(&[2, 3, 5, 6], d).adaptive_avg_pool2d([0, 1]).map(drop)),
        ("adaptive_avg_pool2d", |d| x(&[2, 3, 5, 6], d).adaptive_avg_pool2d([usize::MAX, 1]).map(drop)),
        ("batch_norm", |d| {
            let one = x(&[3], d);
            x(&[1, 3], d).batch_norm([&one.detach(), &one.detach()], &one, &one, Some(0.1), 1e-5).map(drop)
        }),
        ("group_norm", |d| x(&[2, 4], d).group_norm(0, &x(&[4], d), &x(&[4], d), 1e-5).map(drop)),
        ("group_norm", |d| x(&[2, 4], d).group_norm(3, &x(&[4], d), &x(&[4], d), 1e-5).map(drop)),
        ("conv1d", |d| x(&[2, 4, 6], d).conv1d(&x(&[6, 2, 2], d), None, CONV).map(drop)),
    ]
}

fn recurrent() -> Vec<(&'static str, Attempt)> {
    vec![
        ("rnn", |d| x(&[2, 3, 4], d).rnn(0, &[], &x(&[1, 3, 5], d)).map(drop)),
        ("rnn", |d| recurrent_layer(usize::MAX, 1, d)),
        ("rnn", |d| recurrent_layer(1, 1, d)),
        ("rnn", |d| recurrent_layer(0, 3, d)),
    ]
}

fn convolved(options: ConvOptions, device: &Device) -> Result<()> {
    x(&[2, 4, 5, 6], device).conv2d(&x(&[6, 2, 3, 2], device), None, options).map(drop)
}

fn pooled(options: PoolOptions, device: &Device) -> Result<()> {
    x(&[2, 3, 5, 6], device).max_pool2d(options).map(drop)
}

fn transposed(options: ConvOptions, output_padding: [usize; 2], device: &Device) -> Result<()> {
    let weight = x(&[4, 3, 3, 2], device);
    x(&[2, 4, 5, 6], device).conv_transpose2d(&weight, None, options, output_padding).map(drop)
}

/// Of a stack of one layer.
fn recurrent_layer(layer: usize, directions: usize, device: &Device) -> Result<()> {
    let (weight_ih, weight_hh) = (&x(&[5, 4], device), &x(&[5, 5], device));
    let directions = vec![RecurrentRef { weight_ih, weight_hh, bias: None }; directions];
    x(&[2, 3, 4], device).rnn(layer, &directions, &x(&[directions.len(), 3, 5], device)).map(drop)
}

fn tensors() -> Vec<(&'static str, Attempt)> {
    vec![
        ("from_f32", |d| Tensor::from_f32(&[0.0; 5], [2, 3], d).map(drop)),
        ("from_f32", |d| Tensor::from_f32(&[], WRAPS, d).map(drop)),
        ("from_u32", |d| Tensor::from_u32(&[0; 7], [2, 3], d).map(drop)),
        ("from_bytes", |d| Tensor::from_bytes(&[0; 11], Spec::new([2, 3], DType::F16), d).map(drop)),
        ("from_bytes", |d| Tensor::from_bytes(&[], Spec::new([1 << (usize::BITS - 1)], DType::F16), d).map(drop)),
        ("zeros", |d| Tensor::zeros(WRAPS, DType::F32, d).map(drop)),
        ("zeros", |d| Tensor::zeros([usize::MAX / 4 + 1], DType::F32, d).map(drop)),
        ("full", |d| Tensor::full(1.0, WRAPS, d).map(drop)),
        ("write_bytes", |d| x(&[2, 3], d).write_bytes(&[0; 23])),
        ("write_bytes", |d| x(&[2, 3], d).write_bytes(&[0; 25])),
        ("to_f32", |d| ids(d).to_f32().map(drop)),
        ("to_u32", |d| x(&[2, 3], d).to_u32().map(drop)),
        ("item", |d| x(&[2, 3], d).item().map(drop)),
        ("item", |d| x(&[0], d).item().map(drop)),
        ("requires_grad", |d| ids(d).requires_grad().map(drop)),
        ("backward", |d| x(&[2, 3], d).requires_grad()?.neg()?.backward()),
        ("backward", |d| x(&[1], d).backward()),
        ("backward", |d| x(&[1], d).requires_grad()?.backward()),
        ("backward", |d| {
            let y = x(&[1], d).requires_grad()?.neg()?;
            y.backward()?;
            y.backward()
        }),
        ("backward_with", |d| x(&[2, 3], d).requires_grad()?.neg()?.backward_with(&x(&[3, 2], d))),
        ("backward_with", |d| x(&[2, 3], d).requires_grad()?.neg()?.backward_with(&ids(d))),
    ]
}
