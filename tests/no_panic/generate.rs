//! Text from a model: prompts that it cannot continue, settings that draw nothing, tokens that no tokenizer has.

use super::data::tokenizer;
use super::models::{model, small};
use super::{Defined, HUGE, Refused, Row};
use rustyflow::config::GenerateConfig;
use rustyflow::generate::{
    NextDraw, Request, Sampling, Session, TextWriter, check_prompt, draw_each, generate, generate_batch, printable,
};
use rustyflow::{Device, Result, Tensor};
use std::ops::ControlFlow;

fn sampling() -> Sampling {
    Sampling::greedy(20)
}

fn continued(prompt: &[u32], sampling: &Sampling, device: &Device) -> Result<()> {
    generate(&*model(&small(), device)?, prompt, 2, sampling, &mut |_| Ok(ControlFlow::Continue(())))
}

fn batch(prompts: [&[u32]; 2], device: &Device) -> Result<()> {
    let sampling = sampling();
    let requests = prompts.map(|prompt| Request { prompt, sampling: &sampling });
    generate_batch(&*model(&small(), device)?, &requests, 2, &mut |_, _| Ok(ControlFlow::Continue(())))
}

pub fn rows() -> Vec<Row> {
    vec![
        ("Sampling::greedy", Refused, |d| continued(&[1], &Sampling::greedy(0), d)),
        ("Sampling::greedy", Defined, |d| continued(&[1], &Sampling::greedy(HUGE), d)),
        ("Sampling::of", Refused, |d| {
            let config = GenerateConfig { temperature: f64::NAN, top_p: -1.0, ..GenerateConfig::default() };
            continued(&[1], &Sampling::of(&config, 20), d)
        }),
        ("generate", Refused, |d| continued(&[], &sampling(), d)),
        ("generate", Refused, |d| continued(&[u32::MAX], &sampling(), d)),
        ("generate", Refused, |d| continued(&[1; 9], &sampling(), d)),
        ("generate", Refused, |d| continued(&[1], &Sampling { repetition_penalty: 0.0, ..sampling() }, d)),
        ("generate", Refused, |d| continued(&[1], &Sampling { logit_bias: vec![(u32::MAX, 1.0)], ..sampling() }, d)),
        ("generate", Defined, |d| {
            generate(&*model(&small(), d)?, &[1], HUGE, &sampling(), &mut |_| Ok(ControlFlow::Break(())))
        }),
        ("generate_batch", Refused, |d| batch([&[1], &[1, 2]], d)),
        ("generate_batch", Refused, |d| batch([&[], &[]], d)),
        ("generate_batch", Defined, |d| generate_batch(&*model(&small(), d)?, &[], HUGE, &mut |_, _| unreachable!())),
        ("Session::new", Refused, |d| Session::new(&*model(&small(), d)?, &Sampling::greedy(0)).map(drop)),
        ("Session::generate", Refused, |d| {
            let (model, sampling) = (model(&small(), d)?, sampling());
            let mut session = Session::new(&*model, &sampling)?;
            session.generate(&[20], 1, &mut |_| Ok(ControlFlow::Continue(()))).map(drop)
        }),
        ("Session::generate", Defined, |d| {
            let (model, sampling) = (model(&small(), d)?, sampling());
            let mut session = Session::new(&*model, &sampling)?;
            for prompt in [&[1; 8][..], &[1, 2], &[1]] {
                session.generate(prompt, HUGE, &mut |_| Ok(ControlFlow::Continue(())))?;
            }
            Ok(())
        }),
        ("draw_each", Refused, |d| {
            let (sampling, logits) = (sampling(), Tensor::from_f32(&[0.0; 20], [1, 20], d)?);
            let text = NextDraw { sampling: &sampling, number: 0, text: &[u32::MAX], bias: &[] };
            draw_each(&logits, &[Some(text)]).map(drop)
        }),
        ("draw_each", Refused, |d| draw_each(&Tensor::from_f32(&[0.0; 20], [1, 20], d)?, &[None, None]).map(drop)),
        ("check_prompt", Refused, |_| check_prompt(&small(), &[])),
        ("TextWriter::new", Defined, |_| {
            let (tokenizer, stops) = (tokenizer()?, [String::new()]);
            TextWriter::new(&tokenizer, &stops).finish().map(drop)
        }),
        ("TextWriter::until", Defined, |_| {
            let tokenizer = tokenizer()?;
            let mut writer = TextWriter::new(&tokenizer, &[]).until(&[u32::MAX, 0]).without_special_tokens();
            writer.push(0).map(drop)
        }),
        ("TextWriter::push", Refused, |_| TextWriter::new(&tokenizer()?, &[]).push(u32::MAX).map(drop)),
        ("TextWriter::push_prompt", Refused, |_| TextWriter::new(&tokenizer()?, &[]).push_prompt(u32::MAX).map(drop)),
        ("printable", Defined, |_| {
            assert_eq!(printable("\u{1b}a\n"), "\u{fffd}a\n");
            Ok(())
        }),
    ]
}
