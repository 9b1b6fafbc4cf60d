//! Optimizers: rates that are no numbers, parts that there are not, parameters of another model.

use super::{Defined, HUGE, Refused, Row, zeros};
use rustyflow::nn::{Linear, Module, Parameter};
use rustyflow::ops::random::Key;
use rustyflow::optim::{
    AdjustLr, ArenaOptions, Entry, Group, Kind, LearningRate, Moment, Moments, Optimizer, ParameterArena, SavedMoments,
    Schedule, shards,
};
use rustyflow::step::{Losses, SingleDevice, Training, apply_gradients, step, step_alone};
use rustyflow::{DType, Device, Result, Shape, Tensor};
use std::path::Path;

const ADAMW: Kind = Kind::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
const NANS: Kind = Kind::AdamW { beta1: f64::NAN, beta2: f64::INFINITY, eps: -1.0 };
const MUON: Kind = Kind::Muon { momentum: 0.9, nesterov: true, ns_steps: 5, adjust_lr: AdjustLr::Original };

/// Of a linear layer with so many outputs.
fn arena(outputs: usize, device: &Device) -> Result<ParameterArena> {
    let mut layer = Linear::new(4, outputs, true, 0.1, Key::new(1))?;
    ParameterArena::new(&mut layer, device, DType::F32)
}

fn sgd(parameters: &ParameterArena) -> Result<Optimizer> {
    Optimizer::new(parameters, Kind::Sgd { momentum: 0.9, nesterov: false }, 0.1, 1.0)
}

/// Has nothing to train.
struct Nothing;

impl Module for Nothing {
    fn visit_parameters(&mut self, _: &str, _: &mut dyn FnMut(&str, &mut Parameter)) {}
}

fn rate(schedule: Schedule) -> LearningRate {
    LearningRate { schedule, peak: f64::NAN, minimum: 1.0, warmup_steps: HUGE, total_steps: HUGE }
}

fn foreign_entry() -> Entry {
    let (name, shape) = ("other".into(), Shape::from([HUGE, HUGE]));
    Entry { name, shape, dtype: DType::F32, trainable: true, offset: HUGE, linear: None }
}

pub fn rows() -> Vec<Row> {
    [arenas(), schedules(), optimizers(), moments()].concat()
}

fn arenas() -> Vec<Row> {
    vec![
        ("ParameterArena::new", Refused, |d| ParameterArena::new(&mut Nothing, d, DType::F32).map(drop)),
        ("ArenaOptions::new", Refused, |d| {
            let options = ArenaOptions { offload: Some(&|_| true), ..ArenaOptions::new(DType::F32) };
            ParameterArena::with_options(&mut Linear::new(4, 2, true, 0.1, Key::new(1))?, d, options).map(drop)
        }),
        ("ParameterArena::grouped", Defined, |d| {
            let mut layer = Linear::new(4, 2, true, 0.1, Key::new(1))?;
            ParameterArena::grouped(&mut layer, d, DType::U32, &|_, _| HUGE).map(drop)
        }),
        ("ParameterArena::take_values", Refused, |d| {
            arena(2, d)?.take_values(&mut Linear::new(4, 3, true, 0.1, Key::new(1))?)
        }),
        ("ParameterArena::take_values", Refused, |d| arena(2, d)?.take_values(&mut Nothing)),
        ("ParameterArena::of_entry", Defined, |d| {
            assert!(arena(2, d)?.of_entry(&foreign_entry()).is_empty());
            foreign_entry().range();
            Ok(())
        }),
        ("shards", Defined, |d| {
            let parameters = arena(2, d)?;
            let group = |_| Group::new(MUON, 0.1);
            assert!(shards(&parameters, &group, 0).is_empty());
            assert_eq!(shards(&parameters, &group, 1000).len(), 1000);
            Ok(())
        }),
        ("Group::moment_bytes", Defined, |_| {
            assert_eq!(Group::new(ADAMW, 0.1).moment_bytes(HUGE), HUGE);
            Ok(())
        }),
        ("LearningRate::at", Defined, |_| {
            for schedule in [
                Schedule::Cosine,
                Schedule::Linear,
                Schedule::Constant,
                Schedule::Wsd { decay_steps: HUGE },
                Schedule::Plateau,
            ] {
                for step in [0, 1, HUGE - 1, HUGE] {
                    rate(schedule).at(step, f64::NAN);
                    LearningRate { warmup_steps: 0, total_steps: 0, ..rate(schedule) }.at(step, 0.0);
                }
            }
            Ok(())
        }),
    ]
}

/// Rates of every step are numbers, if not always sensible ones.
fn schedules() -> Vec<Row> {
    fn at_all_steps(rate: LearningRate) -> Result<()> {
        for step in [0, 1, HUGE - 1, HUGE] {
            rate.of_step(step);
        }
        Ok(())
    }
    vec![
        ("LearningRate::constant", Defined, |_| at_all_steps(LearningRate::constant(f64::NAN))),
        ("LearningRate::linear", Defined, |_| at_all_steps(LearningRate::linear(1.0, f64::INFINITY, 0))),
        ("LearningRate::cosine", Defined, |_| at_all_steps(LearningRate::cosine(-1.0, f64::NAN, HUGE))),
        ("LearningRate::step", Defined, |_| at_all_steps(LearningRate::step(1.0, 0, f64::NAN))),
        ("LearningRate::exponential", Defined, |_| at_all_steps(LearningRate::exponential(1.0, f64::INFINITY))),
        ("LearningRate::one_cycle", Defined, |_| at_all_steps(LearningRate::one_cycle(1.0, 0))),
        ("LearningRate::warm_up", Defined, |_| at_all_steps(LearningRate::linear(1.0, 0.0, 3).warm_up(HUGE))),
        ("LearningRate::of_step", Defined, |_| at_all_steps(LearningRate::one_cycle(1.0, HUGE).warm_up(1))),
    ]
}

fn optimizers() -> Vec<Row> {
    vec![
        ("Group::new", Defined, |_| {
            Group::new(NANS, f64::NAN);
            Ok(())
        }),
        // Biases are no matrices.
        ("Optimizer::new", Refused, |d| Optimizer::new(&arena(2, d)?, MUON, 0.1, 1.0).map(drop)),
        ("Optimizer::new", Refused, |d| Optimizer::new(&arena(2, d)?, NANS, f64::NAN, f64::NAN).map(drop)),
        ("Optimizer::with_groups", Refused, |d| {
            Optimizer::with_groups(&arena(2, d)?, &|_| Group::new(MUON, 0.1), 1.0).map(drop)
        }),
        ("Optimizer::of_part", Refused, |d| {
            Optimizer::of_part(&arena(2, d)?, &|_| Group::new(ADAMW, 0.1), 1.0, &(0..HUGE)).map(drop)
        }),
        ("Optimizer::of_part", Refused, |d| {
            Optimizer::of_part(&arena(2, d)?, &|_| Group::new(ADAMW, 0.1), 1.0, &(1..5)).map(drop)
        }),
        ("Optimizer::of_part", Refused, |d| {
            #[allow(clippy::reversed_empty_ranges)] // It is what is tested.
            let backwards = 128..0;
            Optimizer::of_part(&arena(2, d)?, &|_| Group::new(ADAMW, 0.1), 1.0, &backwards).map(drop)
        }),
        ("Optimizer::of_part", Defined, |d| {
            let parameters = arena(2, d)?;
            Optimizer::of_part(&parameters, &|_| Group::new(ADAMW, 0.1), 1.0, &(0..0))?.step(&parameters, 0.1).map(drop)
        }),
        ("Optimizer::step", Defined, |d| {
            let parameters = arena(2, d)?;
            let mut optimizer = Optimizer::new(&parameters, ADAMW, f64::NAN, f64::NAN)?;
            optimizer.step(&parameters, f64::NAN)?.to_f32().map(drop)
        }),
        ("Optimizer::step", Refused, |d| sgd(&arena(400, d)?)?.step(&arena(2, d)?, 0.1).map(drop)),
        ("Optimizer::step", Refused, |d| sgd(&arena(2, d)?)?.step(&arena(400, d)?, 0.1).map(drop)),
        ("step_alone", Refused, |d| {
            let parameters = arena(2, d)?;
            let (mut optimizer, none) = (sgd(&parameters)?, std::iter::empty::<()>());
            let loss = |(), _: Option<&Tensor>| Tensor::from_f32(&[1.0], [1], d);
            step_alone((&parameters, &mut optimizer), Losses::Means, none, loss, 0.1).map(drop)
        }),
        ("step", Refused, |d| {
            let parameters = arena(2, d)?;
            let (mut optimizer, mut sync) = (sgd(&parameters)?, SingleDevice);
            let training = Training { parameters: &parameters, optimizer: &mut optimizer, sync: &mut sync };
            // No f32, and not computed from the parameters.
            let loss = |(), _: Option<&Tensor>| Tensor::from_u32(&[1], [1], d);
            step(training, &[&[u32::MAX]], Losses::Parts, [()].into_iter(), loss, f64::NAN).map(drop)
        }),
        ("apply_gradients", Defined, |d| {
            let parameters = arena(2, d)?;
            apply_gradients(&parameters, &mut sgd(&parameters)?, f64::NAN)?.to_f32().map(drop)
        }),
        ("apply_gradients", Refused, |d| apply_gradients(&arena(2, d)?, &mut sgd(&arena(400, d)?)?, 0.1).map(drop)),
        ("Optimizer::keep_averages", Refused, |d| sgd(&arena(2, d)?)?.keep_averages(&arena(400, d)?, 0.9)),
        ("Optimizer::keep_averages", Defined, |d| {
            let parameters = arena(2, d)?;
            sgd(&parameters)?.keep_averages(&parameters, f64::NAN)
        }),
        ("Optimizer::swap_averages", Refused, |d| {
            let parameters = arena(2, d)?;
            let mut optimizer = sgd(&parameters)?;
            optimizer.keep_averages(&parameters, 0.9)?;
            optimizer.swap_averages(&arena(400, d)?)
        }),
        ("Optimizer::average", Refused, |d| {
            let parameters = arena(2, d)?;
            let mut optimizer = sgd(&parameters)?;
            optimizer.keep_averages(&parameters, 0.9)?;
            optimizer.average(&arena(400, d)?, &zeros([1], d)?)
        }),
        ("Optimizer::average", Refused, |d| {
            let parameters = arena(2, d)?;
            let mut optimizer = sgd(&parameters)?;
            optimizer.keep_averages(&parameters, 0.9)?;
            optimizer.average(&parameters, &zeros([0], d)?)
        }),
        ("Optimizer::set_updates", Defined, |d| {
            let parameters = arena(2, d)?;
            let mut optimizer = Optimizer::new(&parameters, ADAMW, 0.1, 1.0)?;
            optimizer.set_updates(u64::MAX - 1);
            optimizer.step(&parameters, 0.1).map(drop)
        }),
    ]
}

fn moments() -> Vec<Row> {
    vec![
        ("SavedMoments::new", Refused, |_| SavedMoments::new(Path::new("moments"), &[7; 99]).map(drop)),
        ("SavedMoments::new", Refused, |_| SavedMoments::new(Path::new("moments"), &[]).map(drop)),
        ("SavedMoments::outer_momentum", Defined, |d| {
            let saved = Moments::new(&arena(2, d)?, vec![]).encode()?;
            SavedMoments::new(Path::new("moments"), &saved)?.outer_momentum(&arena(400, d)?).map(drop)
        }),
        ("Optimizer::restore", Refused, |d| {
            let parameters = arena(2, d)?;
            let saved = Moments::new(&parameters, vec![]).encode()?;
            let saved = SavedMoments::new(Path::new("moments"), &saved)?;
            sgd(&parameters)?.restore(&parameters, &saved, u64::MAX, HUGE, 0)
        }),
        ("Optimizer::restore", Refused, |d| {
            let saved = Moments::new(&arena(2, d)?, vec![]).encode()?;
            let saved = SavedMoments::new(Path::new("moments"), &saved)?;
            sgd(&arena(2, d)?)?.restore(&arena(400, d)?, &saved, 1, 0, 1)
        }),
        ("Moments::new", Defined, |d| Moments::new(&arena(2, d)?, vec![]).encode().map(drop)),
        ("Moment::named", Defined, |_| {
            assert!(Moment::named("", 0..HUGE, HUGE).is_none());
            assert!(Moment::named("exp_avg", HUGE..HUGE, HUGE).is_some());
            Ok(())
        }),
        ("Moment::trained", Defined, |d| {
            Moment::trained(&arena(2, d)?);
            Ok(())
        }),
        ("Moment::outer", Defined, |d| {
            Moment::outer(&arena(2, d)?);
            Ok(())
        }),
    ]
}
