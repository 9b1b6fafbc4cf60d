//! Training of any module: arrays that do not fit, loaders of nothing, numbers that are none.

use super::{Defined, HUGE, Refused, Row};
use rustyflow::fit::{Array, Arrays, DataLoader, LoaderOptions, Trainer, TrainerOptions};
use rustyflow::nn::{Dropout, Linear};
use rustyflow::ops::random::Key;
use rustyflow::optim::{Kind, LearningRate, Optimizer, ParameterArena};
use rustyflow::{DType, Device, Result, Tensor};

const SGD: Kind = Kind::Sgd { momentum: 0.0, nesterov: false };

fn arrays(len: usize) -> Result<Arrays> {
    Arrays::new(vec![Array::f32(&vec![1.0; 3 * len], [len, 3])?])
}

fn loader(len: usize, options: LoaderOptions, device: &Device) -> Result<DataLoader> {
    DataLoader::new(arrays(len)?, options, device)
}

fn options() -> TrainerOptions {
    TrainerOptions::new(SGD, LearningRate::constant(0.1))
}

fn trainer(device: &Device, options: TrainerOptions) -> Result<(Linear, Trainer)> {
    let mut model = Linear::new(3, 1, true, 0.1, Key::new(1))?;
    let trainer = Trainer::new(&mut model, device, options)?;
    Ok((model, trainer))
}

fn loss(model: &Linear, inputs: usize, device: &Device) -> Result<Tensor> {
    model.forward(&Tensor::full(1.0, [2, inputs], device)?, &Dropout::off())?.sum(..)
}

pub fn rows() -> Vec<Row> {
    [batches(), updates()].concat()
}

fn batches() -> Vec<Row> {
    vec![
        ("Array::f32", Refused, |_| Array::f32(&[1.0], [2]).map(drop)),
        ("Array::f32", Refused, |_| Array::f32(&[1.0], [HUGE, HUGE]).map(drop)),
        ("Array::u32", Refused, |_| Array::u32(&[1, 2], [1]).map(drop)),
        ("Array::to_tensor", Defined, |d| Array::u32(&[], [0, HUGE])?.to_tensor(d).map(drop)),
        ("Arrays::new", Refused, |_| Arrays::new(vec![]).map(drop)),
        ("Arrays::new", Refused, |_| Arrays::new(vec![Array::f32(&[1.0], [])?]).map(drop)),
        ("Arrays::new", Refused, |_| {
            Arrays::new(vec![Array::f32(&[1.0], [1])?, Array::f32(&[1.0, 2.0], [2])?]).map(drop)
        }),
        ("DataLoader::new", Refused, |d| loader(3, LoaderOptions::of(0), d).map(drop)),
        ("DataLoader::new", Refused, |d| loader(0, LoaderOptions::of(2), d).map(drop)),
        ("DataLoader::new", Refused, |d| loader(3, LoaderOptions::of(4).drop_last(), d).map(drop)),
        ("LoaderOptions::of", Defined, |d| {
            let batch = loader(3, LoaderOptions::of(HUGE), d)?.epoch(0)?.next().expect("a batch")?;
            batch.take::<1>().map(drop)
        }),
        ("LoaderOptions::shuffled", Defined, |d| {
            loader(3, LoaderOptions::of(2).shuffled(u64::MAX), d)?.epoch(0)?.try_for_each(|batch| batch.map(drop))
        }),
        ("LoaderOptions::workers", Defined, |d| {
            loader(3, LoaderOptions::of(2).workers(0), d)?.epoch(0)?.try_for_each(|batch| batch.map(drop))
        }),
        ("DataLoader::epoch", Defined, |d| {
            loader(3, LoaderOptions::of(2), d)?.epoch(u64::MAX)?.try_for_each(|batch| batch.map(drop))
        }),
        ("DataLoader::epochs", Defined, |d| {
            #[allow(clippy::reversed_empty_ranges)] // It is what is tested.
            let backwards = 5..3;
            assert!(loader(3, LoaderOptions::of(2), d)?.epochs(backwards)?.next().is_none());
            let mut last = loader(3, LoaderOptions::of(2), d)?.epochs(u64::MAX - 1..u64::MAX)?;
            last.try_for_each(|batch| batch.map(drop))
        }),
        ("DataLoader::epochs_from", Defined, |d| {
            loader(3, LoaderOptions::of(2), d)?.epochs_from(0..2, u64::MAX)?.try_for_each(|batch| batch.map(drop))
        }),
    ]
}

fn updates() -> Vec<Row> {
    vec![
        ("TrainerOptions::new", Refused, |d| {
            let kind = Kind::Adam { beta1: f64::NAN, beta2: 2.0, eps: -1.0 };
            trainer(d, TrainerOptions::new(kind, LearningRate::constant(0.1))).map(drop)
        }),
        ("TrainerOptions::weight_decay", Refused, |d| trainer(d, options().weight_decay(f64::NAN)).map(drop)),
        ("TrainerOptions::grad_clip", Refused, |d| trainer(d, options().grad_clip(-1.0)).map(drop)),
        ("Trainer::new", Refused, |d| trainer(d, TrainerOptions::new(SGD, LearningRate::constant(f64::NAN))).map(drop)),
        ("Trainer::from_parts", Defined, |d| {
            let mut model = Linear::new(3, 1, true, 0.1, Key::new(1))?;
            let parameters = ParameterArena::new(&mut model, d, DType::F32)?;
            let optimizer = Optimizer::new(&parameters, SGD, 0.0, 0.0)?;
            let mut trainer = Trainer::from_parts(parameters, optimizer, LearningRate::constant(f64::NAN));
            trainer.step(|| loss(&model, 3, d)).map(drop)
        }),
        ("Trainer::set_learning_rate", Defined, |d| {
            let (model, mut trainer) = trainer(d, options())?;
            trainer.set_learning_rate(LearningRate::step(f64::INFINITY, 0, f64::NAN));
            trainer.step(|| loss(&model, 3, d)).map(drop)
        }),
        ("Trainer::save", Refused, |d| {
            let [(_, trainer), (mut other, _)] = [trainer(d, options())?, trainer(d, options())?];
            trainer.save(&mut other, "no folder/no file")
        }),
        ("Trainer::save", Refused, |d| {
            let (mut model, trainer) = trainer(d, options())?;
            trainer.save(&mut model, "")
        }),
        ("Trainer::load", Refused, |d| {
            let (mut model, mut trainer) = trainer(d, options())?;
            trainer.load(&mut model, "Cargo.toml")
        }),
        ("Trainer::keep_averages", Refused, |d| trainer(d, options())?.1.keep_averages(1.0)),
        ("Trainer::step", Refused, |d| {
            let (model, mut trainer) = trainer(d, options())?;
            trainer.step(|| loss(&model, 4, d)).map(drop)
        }),
        ("Trainer::step", Refused, |d| trainer(d, options())?.1.step(|| Tensor::full(1.0, [2], d)).map(drop)),
        ("Trainer::step_accumulated", Refused, |d| {
            let (model, mut trainer) = trainer(d, options())?;
            trainer.step_accumulated(Vec::<u8>::new(), |_| loss(&model, 3, d)).map(drop)
        }),
    ]
}
