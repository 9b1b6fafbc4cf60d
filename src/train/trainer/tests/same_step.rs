//! Every way to a training step is the same step.

use super::*;
use crate::fit;
use crate::models::{LanguageModel, Past};
use crate::nn::Dropout;
use crate::ops::Criterion;
use crate::optim::LearningRate;
use crate::step::{Losses, apply_gradients, step_alone};
use crate::train::setup::init::first_model;
use crate::train::step::ranks::Place;
use crate::train::step::update_rules::on_device;

const RATE: f64 = 0.01;

/// The step of a run, of `fit::Trainer`, of the benchmark, and of a program that runs backward itself, as in Python.
#[test]
fn every_way_to_a_step_gives_the_same_parameters_to_the_bit() {
    for device in Device::for_tests() {
        let dir = tempfile::tempdir().unwrap();
        let resolved = configuration(dir.path(), &[]);
        let (stop, on_event) = (AtomicBool::new(false), &mut |_: &Event| {});
        let mut trainer = Trainer::prepare(&resolved, options(&device, &stop, on_event)).unwrap();
        let replica = &mut trainer.replica;
        let (shape, position) = (replica.model.config().clone(), replica.loader.position());
        let batches = next_batches(&mut replica.loader, 2);
        replica.start_loader(position).unwrap();
        let upload = |ids: &[u32]| Tensor::from_u32(ids, [4, 16], &device).unwrap();
        let [first, second] = [0, 1].map(|i: usize| (upload(&batches[i].ids), upload(&batches[i].targets)));
        let fresh = || {
            let model = first_model(&resolved.config, &shape, None).unwrap();
            on_device(model, &resolved.config, &device, Place::ALONE).unwrap()
        };
        let [(of_fit, parameters, optimizer), mut of_bench, mut of_python] = [fresh(), fresh(), fresh()];
        let mut fitted = fit::Trainer::from_parts(parameters, optimizer, LearningRate::constant(RATE));
        let loss = |model: &dyn LanguageModel, (ids, targets): &(Tensor, Tensor)| {
            model.loss(ids, targets, Past::Nothing, &Dropout::off(), Criterion::default(), None)
        };
        for (step, batch) in [first, second].iter().enumerate() {
            let of_run = replica.update(step, RATE).unwrap().loss.to_f32().unwrap();
            let update = fitted.step(|| loss(&*of_fit, batch)).unwrap();
            assert_eq!(update.loss.to_f32().unwrap(), of_run, "{device}");
            let (model, parameters, optimizer) = &mut of_bench;
            step_alone((parameters, optimizer), Losses::Parts, [()].into_iter(), |(), _| loss(&**model, batch), RATE)
                .unwrap();
            let (model, parameters, optimizer) = &mut of_python;
            parameters.zero_gradients();
            loss(&**model, batch).unwrap().backward().unwrap();
            apply_gradients(parameters, optimizer, RATE).unwrap();
            let want = replica.parameters.values().to_f32().unwrap();
            for (name, got) in [("fit", fitted.parameters()), ("bench", &of_bench.1), ("python", &of_python.1)] {
                assert!(got.values().to_f32().unwrap() == want, "{device}, step {step}: {name} has other weights");
            }
        }
    }
}
