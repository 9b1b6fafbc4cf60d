//! The layers of language models.

use super::row::Inputs;
use super::{Row, SEED, Sizes};
use crate::ops::inputs::{AROUND_ZERO, Values, draw};
use crate::ops::random::Key;
use crate::ops::sample::Draw;
use crate::ops::{AttentionMask, AttentionOptions, Heads};
use crate::tensor::DType;

/// Of adapters.
const RANK: usize = 16;

/// Rows of B x T tokens of C channels.
fn x(s: &Sizes) -> (Vec<usize>, Values) {
    (vec![s.batch, s.context, s.width], AROUND_ZERO)
}

fn vector(s: &Sizes) -> (Vec<usize>, Values) {
    (vec![s.width], AROUND_ZERO)
}

fn qkv(s: &Sizes) -> Inputs {
    vec![(vec![s.batch, s.context, 3 * s.width], AROUND_ZERO)]
}

/// "16x1024, 12 heads of 64".
fn heads_of(s: &Sizes) -> String {
    format!("{}x{}, {} heads of {}", s.batch, s.context, s.n_head, s.width / s.n_head)
}

fn dropout() -> Option<(f32, Key)> {
    Some((0.1, Key::new(3)))
}

/// Linear layers and what is made of them.
pub(super) fn linear(s: &Sizes) -> Vec<Row> {
    let (b, t, c) = (s.batch, s.context, s.width);
    let linear = vec![x(s), (vec![c, 3 * c], AROUND_ZERO), (vec![3 * c], AROUND_ZERO)];
    let sizes = [vec![b, t, c], vec![c, 4 * c], vec![4 * c, c], vec![4 * c], vec![c]];
    let mlp = sizes.map(|shape| (shape, Values::Uniform(-0.1, 0.1))).to_vec();
    let adapter = [vec![b, t, 3 * c], vec![b, t, c], vec![RANK, c], vec![3 * c, RANK], vec![3 * c, RANK]];
    let adapter = adapter.map(|shape| (shape, AROUND_ZERO)).to_vec();
    vec![
        Row::both("linear", format!("{}x{}x{c}", b * t, 3 * c), linear, &[1, 2], |x| {
            x[0].linear(&x[1], false, Some(&x[2]))
        }),
        Row::both("feed_forward", format!("{}x{c}, {} between", b * t, 4 * c), mlp, &[1, 2, 3, 4], |x| {
            x[0].feed_forward(&x[1], &x[2], Some((&x[3], &x[4])))
        }),
        Row::both("add_low_rank", format!("{}x{}x{c}, rank {RANK}", b * t, 3 * c), adapter, &[2, 3], |x| {
            // What backward adds up is what the adapter learns; the scales are given.
            x[0].clone().add_low_rank(&x[1], &x[2], &x[3], &x[4].detach())
        }),
    ]
}

pub(super) fn attention(s: &Sizes) -> Vec<Row> {
    let (b, t, c, n_head) = (s.batch, s.context, s.width, s.n_head);
    let heads = heads_of(s);
    let new_token = vec![(vec![1, 1, 3 * c], AROUND_ZERO), (vec![1, t, 2 * c], AROUND_ZERO)];
    let per_head = [vec![t, c / n_head], vec![c / n_head], vec![c / n_head]].map(|shape| (shape, AROUND_ZERO));
    let rotated = [qkv(s), per_head.to_vec()].concat();
    vec![
        Row::both("attention", heads.clone(), qkv(s), &[], move |x| {
            x[0].causal_attention(Heads::multi_head(n_head), None, None)
        }),
        Row::both("attention", format!("{heads}, dropout"), qkv(s), &[], move |x| {
            x[0].causal_attention(Heads::multi_head(n_head), None, dropout())
        }),
        Row::forward(
            "cached_attention",
            format!("1 after {}, {n_head} heads of {}", t - 1, c / n_head),
            new_token,
            move |x| {
                let heads = Heads::multi_head(n_head);
                x[0].append_and_attend(heads, &x[1], t - 1)
            },
        ),
        Row::forward(
            "append_and_attend_ragged",
            format!("2x1 after up to {}, {n_head} heads of {}", t - 1, c / n_head),
            vec![(vec![2, 1, 3 * c], AROUND_ZERO), (vec![2, t, 2 * c], AROUND_ZERO), (vec![2], Values::Ids(t as u32))],
            move |x| x[0].append_and_attend_ragged(Heads::multi_head(n_head), &x[1], &x[2]),
        ),
        masked_attention([b.div_ceil(4), n_head, t, c / n_head]),
        half_attention(&heads, qkv(s), n_head, None),
        half_attention(&format!("{heads}, dropout"), qkv(s), n_head, dropout()),
        Row::both("rope", heads.clone(), rotated[..2].to_vec(), &[], move |x| {
            x[0].rope(Heads::multi_head(n_head), &x[1].detach(), None)
        }),
        Row::both("rope", format!("{heads}, QK-norm"), rotated, &[2, 3], move |x| {
            x[0].rope(Heads::multi_head(n_head), &x[1].detach(), Some((1e-6, [&x[2], &x[3]])))
        }),
    ]
}

pub(super) fn norms(s: &Sizes) -> Vec<Row> {
    let shape = format!("{}x{}", s.tokens(), s.width);
    let summed = vec![x(s), vector(s), vector(s), x(s)];
    vec![
        Row::both("layer_norm", shape.clone(), summed[..3].to_vec(), &[1, 2], |x| {
            x[0].layer_norm(&x[1], Some(&x[2]), 1e-5)
        }),
        Row::both("add_layer_norm", shape.clone(), summed.clone(), &[1, 2], |x| {
            Ok(x[0].add_layer_norm(&x[3], None, DType::F32, &x[1], Some(&x[2]), 1e-5)?.1)
        }),
        Row::both("add_layer_norm", format!("{shape}, dropout"), summed.clone(), &[1, 2], |x| {
            Ok(x[0].add_layer_norm(&x[3], dropout(), DType::F32, &x[1], Some(&x[2]), 1e-5)?.1)
        }),
        Row::both("rms_norm_to", shape.clone(), summed[..2].to_vec(), &[1], |x| {
            x[0].rms_norm_to(DType::F32, &x[1], 1e-5)
        }),
        Row::both("add_rms_norm", shape, vec![x(s), vector(s), x(s)], &[1], |x| {
            Ok(x[0].add_rms_norm(&x[2], None, DType::F32, &x[1], 1e-5)?.1)
        }),
    ]
}

/// Activations, softmax, the embedding, and sampling.
pub(super) fn others(s: &Sizes) -> Vec<Row> {
    let (b, t, c) = (s.batch, s.context, s.width);
    let scores = || vec![(vec![b * t, t], AROUND_ZERO)];
    let (table, ids) = ((vec![s.vocab, c], AROUND_ZERO), (vec![b, t], Values::Ids(s.vocab as u32)));
    vec![
        Row::both("swiglu", format!("{}x{}", b * t, 4 * c), vec![(vec![b, t, 8 * c], AROUND_ZERO)], &[], |x| {
            x[0].swiglu()
        }),
        Row::both("softmax", format!("{}x{t}", b * t), scores(), &[], |x| x[0].softmax()),
        Row::both("log_softmax", format!("{}x{t}", b * t), scores(), &[], |x| x[0].log_softmax()),
        Row::both("embedding", format!("{} of {}x{c}", b * t, s.vocab), vec![table, ids], &[0], |x| {
            x[0].embedding(&x[1])
        }),
        sample("the softmax", s.vocab, |draw| draw),
        sample("top-k 200 and top-p 0.9", s.vocab, |draw| Draw { top_k: 200, top_p: 0.9, ..draw }),
    ]
}

/// The next tokens of a few texts.
fn sample(from: &str, vocabulary: usize, change: fn(Draw) -> Draw) -> Row {
    const TEXTS: usize = 16;
    Row::new("sample", format!("{TEXTS}x{vocabulary}, {from}"), move |device| {
        let logits = draw(&[(vec![TEXTS, vocabulary], Values::Uniform(-8.0, 8.0))], device, SEED)?.remove(0);
        let of_text = |text: usize| {
            let key = Key::new(text as u64);
            let (tokens, top_k) = (vocabulary as u32, u32::MAX);
            change(Draw { tokens, temperature: 0.8, top_k, top_p: 1.0, min_p: 0.0, penalty: 1.0, key })
        };
        let settings = Draw::to_tensor(&(0..TEXTS).map(of_text).collect::<Vec<_>>(), device)?;
        Ok(Box::new(move || Ok(vec![logits.sample(&settings, None, None, 0)?])))
    })
}

/// Attention with a mask that is added, as learned biases of positions are.
fn masked_attention(shape: [usize; 4]) -> Row {
    let [batch, n_head, t, head_size] = shape;
    let name = format!("{batch}x{t}, {n_head} heads of {head_size}, a mask");
    let inputs = [vec![(shape.to_vec(), AROUND_ZERO); 3], vec![(vec![n_head, t, t], AROUND_ZERO)]].concat();
    Row::both("scaled_dot_product_attention", name, inputs, &[3], |x| {
        let mask = Some(AttentionMask::Additive(&x[3]));
        x[0].scaled_dot_product_attention(&x[1], &x[2], AttentionOptions { mask, ..AttentionOptions::default() })
    })
}

/// Attention that stores f16.
fn half_attention(heads: &str, qkv: Inputs, n_head: usize, dropout: Option<(f32, Key)>) -> Row {
    let row = Row::both("attention", format!("f16 {heads}"), qkv, &[], move |x| {
        x[0].to_dtype(DType::F16)?.causal_attention(Heads::multi_head(n_head), None, dropout)?.to_dtype(DType::F32)
    });
    Row { tolerance: 1e-2, f16: true, ..row }
}
