//! Layers: sizes that no memory holds, zeros, tensors that do not fit.

use super::{Defined, HUGE, LARGE, Refused, Row, ids, zeros};
use rustyflow::nn::{
    AdaptiveAvgPool2d, AvgPool2d, BatchNorm, Conv1d, Conv2d, ConvTranspose2d, Dropout, Dropout2d, DropoutLayer,
    Embedding, GroupNorm, Gru, Layer, LayerNorm, Linear, LowRank, Lstm, MaxPool2d, Module, MultiHeadAttention,
    Parameter, RecurrentConfig, ResidualStream, RmsNorm, Rnn, RopeScaling, Rotary, Sequential, StateDict, init_keys,
};
use rustyflow::ops::random::Key;
use rustyflow::ops::{ConvOptions, PoolOptions};
use rustyflow::{DType, Device, Result, Tensor};

const KEY: Key = Key { words: [1, 2], slice_start: 0 };
const PLAIN: ConvOptions = ConvOptions { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 };
const SIZES: RecurrentConfig =
    RecurrentConfig { input_size: 3, hidden_size: 2, num_layers: 1, bias: true, bidirectional: true };
const HUGE_SIZES: RecurrentConfig = RecurrentConfig { hidden_size: HUGE, ..SIZES };
const HUGE_STACK: RecurrentConfig = RecurrentConfig { num_layers: HUGE, ..SIZES };
const NO_LAYERS: RecurrentConfig = RecurrentConfig { num_layers: 0, ..SIZES };

/// The layer, moved to the device.
fn on<M: Module>(device: &Device, mut module: M) -> Result<M> {
    module.to_device(device)?;
    Ok(module)
}

fn linear(device: &Device) -> Result<Linear> {
    on(device, Linear::new(3, 2, true, 0.1, KEY)?)
}

fn stream(device: &Device) -> Result<ResidualStream> {
    Ok(ResidualStream::new(zeros([2, 3], device)?, DType::F32))
}

pub fn rows() -> Vec<Row> {
    [linear_layers(), norms(), images(), recurrent(), attention(), containers(), others()].concat()
}

fn self_attention(device: &Device) -> Result<MultiHeadAttention> {
    on(device, MultiHeadAttention::new(4, 2, true, DropoutLayer::new(0.0, 1), init_keys(1))?)
}

fn attention() -> Vec<Row> {
    vec![
        ("MultiHeadAttention::new", Refused, |_| {
            MultiHeadAttention::new(4, 0, true, DropoutLayer::new(0.0, 1), init_keys(1)).map(drop)
        }),
        ("MultiHeadAttention::new", Refused, |_| {
            MultiHeadAttention::new(5, 2, true, DropoutLayer::new(0.0, 1), init_keys(1)).map(drop)
        }),
        ("MultiHeadAttention::new", Refused, |_| {
            MultiHeadAttention::new(HUGE, 1, true, DropoutLayer::new(0.0, 1), init_keys(1)).map(drop)
        }),
        ("MultiHeadAttention::forward", Refused, |d| {
            self_attention(d)?.forward(&zeros([2, 3, 5], d)?, None, true).map(drop)
        }),
        ("MultiHeadAttention::forward", Refused, |d| self_attention(d)?.forward(&zeros([], d)?, None, false).map(drop)),
        ("MultiHeadAttention::forward", Defined, |d| {
            self_attention(d)?.forward(&zeros([0, 3, 4], d)?, None, true)?.to_f32().map(drop)
        }),
        ("MultiHeadAttention::forward_cross", Refused, |d| {
            let (q, kv) = (zeros([2, 3, 4], d)?, zeros([1, 5, 4], d)?);
            self_attention(d)?.forward_cross(&q, &kv, &kv, None, false).map(drop)
        }),
        ("MultiHeadAttention::forward_cross", Refused, |d| {
            let x = zeros([3, 4], d)?;
            self_attention(d)?.forward_cross(&x, &x, &ids([3, 4], d)?, None, false).map(drop)
        }),
    ]
}

fn containers() -> Vec<Row> {
    vec![
        ("DropoutLayer::new", Refused, |d| DropoutLayer::new(f32::NAN, 1).forward(&zeros([2], d)?).map(drop)),
        ("DropoutLayer::forward", Refused, |d| DropoutLayer::new(0.5, 1).forward(&ids([2], d)?).map(drop)),
        ("DropoutLayer::forward", Defined, |d| DropoutLayer::new(0.5, 1).forward(&zeros([0], d)?)?.to_f32().map(drop)),
        ("Dropout2d::new", Refused, |d| Dropout2d::new(2.0, 1).forward(&zeros([1, 2, 3, 3], d)?).map(drop)),
        ("Dropout2d::forward", Refused, |d| Dropout2d::new(0.5, 1).forward(&zeros([2], d)?).map(drop)),
        ("Dropout2d::forward", Refused, |d| Dropout2d::new(0.5, 1).forward(&ids([1, 2, 3], d)?).map(drop)),
        ("AdaptiveAvgPool2d::forward", Refused, |d| {
            AdaptiveAvgPool2d([0, 1]).forward(&zeros([1, 1, 4, 4], d)?).map(drop)
        }),
        ("AdaptiveAvgPool2d::forward", Refused, |d| AdaptiveAvgPool2d([2, 2]).forward(&zeros([4], d)?).map(drop)),
        ("Sequential::new", Defined, |d| Layer::forward(&Sequential::new(vec![]), &zeros([2], d)?).map(drop)),
        ("Sequential::then", Refused, |d| {
            let layers = Sequential::new(vec![]).then(AvgPool2d(PoolOptions::new([2, 2])));
            Layer::forward(&layers, &zeros([2], d)?).map(drop)
        }),
        ("Parameter::assign", Refused, |d| Parameter::from(zeros([2], d)?).assign(&zeros([3], d)?)),
        ("Parameter::assign", Refused, |d| Parameter::from(zeros([2], d)?).assign(&ids([2], d)?)),
        ("Parameter::freeze_quantized", Refused, |d| Parameter::from(zeros([2, 48], d)?).freeze_quantized(DType::Q4_0)),
        ("StateDict::load", Refused, |_| StateDict::load("/there/is/no/such/file").map(drop)),
        ("StateDict::save", Refused, |_| linear(&Device::Cpu)?.state_dict()?.save("/dev/null/file")),
    ]
}

fn linear_layers() -> Vec<Row> {
    vec![
        ("init_keys", Defined, |_| {
            init_keys(u64::MAX)();
            Ok(())
        }),
        ("Linear::new", Refused, |_| Linear::new(HUGE, 2, true, 0.1, KEY).map(drop)),
        ("Linear::new", Refused, |_| Linear::new(LARGE, 2, true, 0.1, KEY).map(drop)),
        ("Linear::new", Refused, |_| Linear::new(0, HUGE, true, 0.1, KEY).map(drop)),
        ("Linear::new", Defined, |_| Linear::new(0, 2, true, f32::NAN, KEY).map(drop)),
        ("Linear::fused", Refused, |_| Linear::fused(2, &[HUGE, HUGE], true, 0.1, KEY).map(drop)),
        ("Linear::fused", Defined, |_| Linear::fused(2, &[], true, 0.1, KEY).map(drop)),
        ("Linear::outputs_first", Refused, |_| Linear::outputs_first(2, &[HUGE, 2], true, 0.1, KEY).map(drop)),
        ("Linear::forward", Refused, |d| linear(d)?.forward(&zeros([2, 4], d)?, &Dropout::off()).map(drop)),
        ("Linear::forward", Refused, |d| linear(d)?.forward(&zeros([], d)?, &Dropout::off()).map(drop)),
        ("Linear::forward", Refused, |d| linear(d)?.forward(&ids([2, 3], d)?, &Dropout::off()).map(drop)),
        ("Linear::forward", Defined, |d| linear(d)?.forward(&zeros([0, 3], d)?, &Dropout::off()).map(drop)),
        ("Linear::is_plain", Defined, |d| {
            linear(d)?.is_plain(DType::U32);
            Ok(())
        }),
        ("Embedding::new", Refused, |_| Embedding::new(HUGE, HUGE, 0.1, KEY).map(drop)),
        ("Embedding::forward", Refused, |d| on(d, Embedding::new(3, 2, 0.1, KEY)?)?.forward(&zeros([2], d)?).map(drop)),
        ("Embedding::forward", Defined, |d| {
            on(d, Embedding::new(3, 2, 0.1, KEY)?)?.forward(&ids([0], d)?)?.to_f32().map(drop)
        }),
        // An id beyond the end: what it gives is not said, and nothing breaks.
        ("Embedding::forward", Defined, |d| {
            let id = Tensor::from_u32(&[u32::MAX], [1], d)?;
            on(d, Embedding::new(3, 2, 0.1, KEY)?)?.forward(&id)?.to_f32().map(drop)
        }),
        ("LowRank::new", Refused, |_| LowRank::new(HUGE, 2, &[0..2, 0..2], HUGE, 1.0, KEY).map(drop)),
        ("LowRank::new", Defined, |_| LowRank::new(2, 2, &[], 0, f32::NAN, KEY).map(drop)),
        ("LowRank::train_magnitudes", Refused, |d| {
            let mut low_rank = LowRank::new(3, 2, std::slice::from_ref(&(0..2)), 1, 1.0, KEY)?;
            low_rank.train_magnitudes(&zeros([2, 4], d)?, true)
        }),
        ("LowRank::add_to", Refused, |d| {
            let low_rank = LowRank::new(3, 2, std::slice::from_ref(&(0..2)), 1, 1.0, KEY)?;
            low_rank.add_to(zeros([2, 2], d)?, &zeros([2, 4], d)?, &Dropout::off()).map(drop)
        }),
    ]
}

fn norms() -> Vec<Row> {
    vec![
        ("LayerNorm::new", Refused, |_| LayerNorm::new(HUGE, true).map(drop)),
        ("RmsNorm::new", Refused, |_| RmsNorm::new(LARGE, 1e-5).map(drop)),
        ("RmsNorm::new", Defined, |_| RmsNorm::new(2, f32::NAN).map(drop)),
        ("BatchNorm::new", Refused, |_| BatchNorm::new(HUGE).map(drop)),
        ("BatchNorm::forward", Refused, |d| on(d, BatchNorm::new(3)?)?.forward(&zeros([2, 4], d)?).map(drop)),
        ("BatchNorm::forward", Refused, |d| on(d, BatchNorm::new(3)?)?.forward(&zeros([1, 3], d)?).map(drop)),
        ("BatchNorm::forward", Refused, |d| on(d, BatchNorm::new(3)?)?.forward(&ids([2, 3], d)?).map(drop)),
        ("BatchNorm::forward", Refused, |d| on(d, BatchNorm::new(3)?)?.forward(&zeros([], d)?).map(drop)),
        ("GroupNorm::new", Refused, |_| GroupNorm::new(1, HUGE).map(drop)),
        ("GroupNorm::forward", Refused, |d| on(d, GroupNorm::new(0, 4)?)?.forward(&zeros([2, 4], d)?).map(drop)),
        ("GroupNorm::forward", Refused, |d| on(d, GroupNorm::new(3, 4)?)?.forward(&zeros([2, 4], d)?).map(drop)),
        ("GroupNorm::forward", Refused, |d| on(d, GroupNorm::new(2, 4)?)?.forward(&zeros([4], d)?).map(drop)),
    ]
}

fn images() -> Vec<Row> {
    vec![
        ("Conv2d::new", Refused, |_| Conv2d::new([2, HUGE], [HUGE; 2], PLAIN, true, init_keys(1)).map(drop)),
        ("Conv2d::new", Refused, |_| Conv2d::new([LARGE, 2], [1; 2], PLAIN, true, init_keys(1)).map(drop)),
        ("Conv2d::forward", Refused, |d| {
            let no_groups = ConvOptions { groups: 0, ..PLAIN };
            on(d, Conv2d::new([2, 4], [3; 2], no_groups, true, init_keys(1))?)?
                .forward(&zeros([1, 2, 5, 5], d)?)
                .map(drop)
        }),
        ("Conv2d::forward", Refused, |d| {
            let odd_groups = ConvOptions { groups: 3, ..PLAIN };
            on(d, Conv2d::new([2, 4], [3; 2], odd_groups, true, init_keys(1))?)?
                .forward(&zeros([1, 2, 5, 5], d)?)
                .map(drop)
        }),
        ("Conv2d::forward", Refused, |d| {
            on(d, Conv2d::new([2, 4], [0, 3], PLAIN, false, init_keys(1))?)?.forward(&zeros([1, 2, 5, 5], d)?).map(drop)
        }),
        ("Conv2d::forward", Refused, |d| {
            on(d, Conv2d::new([2, 4], [6, 3], PLAIN, false, init_keys(1))?)?.forward(&zeros([1, 2, 5, 5], d)?).map(drop)
        }),
        ("Conv2d::forward", Refused, |d| {
            on(d, Conv2d::new([2, 4], [3; 2], PLAIN, true, init_keys(1))?)?.forward(&ids([1, 2, 5, 5], d)?).map(drop)
        }),
        ("Conv1d::new", Refused, |_| Conv1d::new([HUGE; 2], HUGE, PLAIN, true, init_keys(1)).map(drop)),
        ("Conv1d::forward", Refused, |d| {
            on(d, Conv1d::new([2, 4], 3, PLAIN, true, init_keys(1))?)?.forward(&zeros([1, 3, 5], d)?).map(drop)
        }),
        ("ConvTranspose2d::new", Refused, |_| {
            ConvTranspose2d::new([HUGE, 2], [HUGE; 2], PLAIN, [0; 2], true, init_keys(1)).map(drop)
        }),
        ("ConvTranspose2d::forward", Refused, |d| {
            let layer = ConvTranspose2d::new([2, 4], [3; 2], PLAIN, [HUGE; 2], true, init_keys(1))?;
            on(d, layer)?.forward(&zeros([1, 2, 5, 5], d)?).map(drop)
        }),
        ("MaxPool2d::forward", Refused, |d| {
            MaxPool2d(PoolOptions::new([0; 2])).forward(&zeros([1, 1, 4, 4], d)?).map(drop)
        }),
        ("MaxPool2d::forward", Refused, |d| MaxPool2d(PoolOptions::new([2; 2])).forward(&zeros([4], d)?).map(drop)),
        ("AvgPool2d::forward", Refused, |d| {
            AvgPool2d(PoolOptions::new([HUGE; 2])).forward(&zeros([1, 1, 4, 4], d)?).map(drop)
        }),
    ]
}

fn recurrent() -> Vec<Row> {
    vec![
        ("Rnn::new", Refused, |_| Rnn::new(HUGE_SIZES, init_keys(1)).map(drop)),
        ("Lstm::new", Refused, |_| Lstm::new(HUGE_SIZES, init_keys(1)).map(drop)),
        ("Gru::new", Refused, |_| Gru::new(HUGE_SIZES, init_keys(1)).map(drop)),
        ("Rnn::new", Refused, |_| Rnn::new(HUGE_STACK, init_keys(1)).map(drop)),
        ("Lstm::new", Refused, |_| Lstm::new(HUGE_STACK, init_keys(1)).map(drop)),
        ("Gru::new", Refused, |_| Gru::new(HUGE_STACK, init_keys(1)).map(drop)),
        ("Rnn::forward", Refused, |d| {
            on(d, Rnn::new(SIZES, init_keys(1))?)?.forward(&zeros([2, 1, 4], d)?, None, &Dropout::off()).map(drop)
        }),
        ("Rnn::forward", Refused, |d| {
            on(d, Rnn::new(SIZES, init_keys(1))?)?.forward(&zeros([], d)?, None, &Dropout::off()).map(drop)
        }),
        ("Rnn::forward", Refused, |d| {
            let state = zeros([1, 1, 2], d)?;
            on(d, Rnn::new(SIZES, init_keys(1))?)?
                .forward(&zeros([2, 1, 3], d)?, Some(&state), &Dropout::off())
                .map(drop)
        }),
        // A stack of no layers gives what it is given.
        ("Rnn::forward", Defined, |d| {
            on(d, Rnn::new(NO_LAYERS, init_keys(1))?)?.forward(&zeros([2, 1, 3], d)?, None, &Dropout::off()).map(drop)
        }),
        ("Lstm::forward", Refused, |d| {
            let states = [zeros([2, 1, 2], d)?, zeros([2, 1, 3], d)?];
            on(d, Lstm::new(SIZES, init_keys(1))?)?
                .forward(&zeros([2, 1, 3], d)?, Some(&states), &Dropout::off())
                .map(drop)
        }),
        ("Gru::forward", Refused, |d| {
            on(d, Gru::new(SIZES, init_keys(1))?)?.forward(&ids([2, 1, 3], d)?, None, &Dropout::off()).map(drop)
        }),
        ("Gru::forward", Refused, |d| {
            on(d, Gru::new(SIZES, init_keys(1))?)?.forward(&zeros([0, 1, 3], d)?, None, &Dropout::off()).map(drop)
        }),
    ]
}

fn others() -> Vec<Row> {
    vec![
        ("Rotary::new", Defined, |_| {
            Rotary::new(HUGE, HUGE, f64::NAN, None);
            Ok(())
        }),
        ("Rotary::table", Refused, |d| Rotary::new(HUGE, 4, 1e4, None).table(d).map(drop)),
        ("Rotary::table", Refused, |d| Rotary::new(2, HUGE, 1e4, None).table(d).map(drop)),
        ("Rotary::table", Refused, |d| Rotary::new(LARGE, LARGE, 1e4, None).table(d).map(drop)),
        ("Rotary::table", Defined, |d| Rotary::new(0, 0, 0.0, None).table(d).map(drop)),
        ("RopeScaling::apply", Defined, |_| {
            RopeScaling::Linear { factor: 0.0 }.apply(f64::NAN);
            let (factor, low_freq_factor, high_freq_factor) = (0.0, f64::NAN, f64::NAN);
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_block_size: HUGE }.apply(1.0);
            Ok(())
        }),
        ("Dropout::new", Defined, |_| {
            Dropout::new(f32::NAN, u64::MAX, u64::MAX).next();
            Ok(())
        }),
        ("Dropout::of_embeddings", Refused, |d| {
            Dropout::off().of_embeddings(2.0).apply_to_embeddings(zeros([2, 3], d)?).map(drop)
        }),
        ("Dropout::of_adapters", Defined, |_| {
            Dropout::off().of_adapters(f32::NAN).next();
            Ok(())
        }),
        ("Dropout::from_sequence", Defined, |_| {
            Dropout::new(0.5, 1, 1).from_sequence(HUGE).next();
            Ok(())
        }),
        ("Dropout::apply_to_embeddings", Refused, |d| {
            Dropout::new(f32::NAN, 1, 1).apply_to_embeddings(zeros([2, 3], d)?).map(drop)
        }),
        ("Dropout::apply_to_embeddings", Refused, |d| {
            Dropout::new(0.5, 1, 1).apply_to_embeddings(ids([2, 3], d)?).map(drop)
        }),
        ("ResidualStream::new", Defined, |d| {
            ResidualStream::new(ids([2], d)?, DType::U32);
            Ok(())
        }),
        ("ResidualStream::add", Refused, |d| {
            let mut stream = stream(d)?;
            stream.add(zeros([2, 4], d)?, &Dropout::off())?;
            stream.norm(&on(d, LayerNorm::new(3, true)?)?).map(drop)
        }),
        ("ResidualStream::norm", Refused, |d| stream(d)?.norm(&on(d, LayerNorm::new(4, true)?)?).map(drop)),
        ("ResidualStream::norm_linear", Refused, |d| {
            let norm = on(d, LayerNorm::new(4, true)?)?;
            stream(d)?.norm_linear(&norm, &linear(d)?, &Dropout::off()).map(drop)
        }),
        ("ResidualStream::norm_linear_gelu", Refused, |d| {
            let norm = on(d, LayerNorm::new(4, true)?)?;
            let together = rustyflow::tensor::no_grad(|| stream(d)?.norm_linear_gelu(&norm, &linear(d)?))?;
            // `None` says that they are no such pair.
            together.map(drop).ok_or_else(|| rustyflow::Error::Invalid("not together".into()))
        }),
        ("ResidualStream::recomputed", Refused, |d| {
            let x = ResidualStream::new(zeros([2, 3], d)?.requires_grad()?, DType::F32);
            let wrong = LayerNorm::new(4, true)?;
            let block = move |mut x: ResidualStream, _: &Dropout| x.norm(&wrong).map(|_| x);
            x.recomputed(&Dropout::off(), block).map(drop)
        }),
        ("recomputed", Refused, |d| {
            let x = zeros([2, 3], d)?.requires_grad()?;
            rustyflow::nn::recomputed(&x, &Dropout::off(), |x, _| x.matmul(x)).map(drop)
        }),
        ("without_adapters", Defined, |d| {
            rustyflow::tensor::without_adapters(|| rustyflow::tensor::without_adapters(|| zeros([2, 3], d))).map(drop)
        }),
        ("join", Defined, |_| {
            assert_eq!(rustyflow::nn::join("", ""), "");
            Ok(())
        }),
    ]
}
