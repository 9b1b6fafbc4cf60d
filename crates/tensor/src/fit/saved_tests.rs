use super::*;
use crate::fit::TrainerOptions;
use crate::nn::{Activation, BatchNorm, DropoutLayer, Layer, Linear, Sequential, init_keys};
use crate::optim::{Kind, LearningRate};
use crate::{DType, Device};

const ADAM: Kind = Kind::Adam { beta1: 0.9, beta2: 0.99, eps: 1e-8 };

/// With buffers, and with a dropout that counts its passes.
fn net(seed: u64) -> Sequential {
    let mut keys = init_keys(seed);
    let mut linear = |inputs, outputs| Linear::outputs_first(inputs, &[outputs], true, 0.5, keys()).unwrap();
    Sequential::default()
        .then(linear(3, 8))
        .then(BatchNorm::new(8).unwrap())
        .then(Activation::Tanh)
        .then(Sequential::default().then(DropoutLayer::new(0.3, 7)))
        .then(linear(8, 1))
}

fn options(operands: DType) -> TrainerOptions {
    let rate = LearningRate::linear(0.05, 0.0, 9).warm_up(2);
    TrainerOptions { operands, ..TrainerOptions::new(ADAM, rate).weight_decay(0.01).grad_clip(0.5) }
}

fn trained(seed: u64, device: &Device, operands: DType, averages: bool) -> (Sequential, Trainer) {
    let mut net = net(seed);
    let mut trainer = Trainer::new(&mut net, device, options(operands)).unwrap();
    if averages {
        trainer.keep_averages(0.9).unwrap();
    }
    (net, trainer)
}

/// The losses of so many updates, from the one that is next.
fn updates(net: &Sequential, trainer: &mut Trainer, count: usize) -> Vec<f64> {
    let device = trainer.parameters.values().device();
    let update = |_| {
        let number = trainer.updates();
        let x: Vec<f32> = (0..18).map(|i| ((i * 37 + number * 5) % 19) as f32 / 10.0 - 0.9).collect();
        let x = Tensor::from_f32(&x, [6, 3], &device).unwrap();
        let loss = || {
            let y = net.forward(&x)?.to_dtype(DType::F32)?;
            y.mul(&y)?.mean(..)?.scale(3.0)
        };
        trainer.step(loss).unwrap().numbers().unwrap().loss
    };
    (0..count).map(update).collect()
}

fn bytes(net: &mut Sequential) -> BTreeMap<String, Vec<u8>> {
    let tensors = net.state_dict().unwrap().tensors;
    tensors.into_iter().map(|(name, tensor)| (name, tensor.to_bytes().unwrap())).collect()
}

#[test]
fn a_training_that_was_stopped_goes_on_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("training.safetensors");
    for device in Device::for_tests() {
        let precisions = [DType::F32].into_iter().chain(device.has_f16().then_some(DType::F16));
        for (operands, averages) in precisions.flat_map(|operands| [(operands, false), (operands, true)]) {
            let (mut net, mut trainer) = trained(1, &device, operands, averages);
            updates(&net, &mut trainer, 4);
            trainer.save(&mut net, &path).unwrap();
            let (mut other_net, mut other) = trained(2, &device, operands, averages);
            // What it did before is forgotten.
            updates(&other_net, &mut other, 1);
            other.load(&mut other_net, &path).unwrap();
            let what = format!("{device}, {operands:?}, averages {averages}");
            assert_eq!(bytes(&mut net), bytes(&mut other_net), "{what}: saving changes nothing, loading all");
            assert_eq!(updates(&net, &mut trainer, 4), updates(&other_net, &mut other, 4), "{what}");
            assert_eq!((trainer.updates(), other.updates()), (8, 8), "{what}");
            for _ in 0..2 {
                assert_eq!(bytes(&mut net), bytes(&mut other_net), "{what}");
                [&trainer, &other].into_iter().for_each(|trainer| trainer.swap_averages().unwrap());
            }
        }
    }
}

#[test]
fn the_file_has_the_averages_and_buffers_of_the_module() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("training.safetensors");
    let (mut net, mut trainer) = trained(1, &Device::Cpu, DType::F32, true);
    updates(&net, &mut trainer, 3);
    trainer.save(&mut net, &path).unwrap();
    let weights = bytes(&mut net);
    trainer.swap_averages().unwrap();
    let averages = bytes(&mut net);
    let file = std::fs::read(&path).unwrap();
    let file = parse(&path, &file).unwrap();
    for (name, average) in &averages {
        assert_eq!(file.tensor(&format!("model.{name}")).unwrap().data(), average, "{name}");
        if let Ok(trained) = file.tensor(&format!("optimizer.trained.{name}")) {
            assert_eq!(trained.data(), weights[name], "{name}");
        }
    }
    assert_ne!(averages["1.running_mean"], [0; 32], "batches were seen");
    assert_eq!(saved_numbers(&path, &file, "count.3.0.passes").unwrap(), [3]);
}

#[test]
fn what_is_not_of_this_training_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("training.safetensors");
    let (mut net, mut trainer) = trained(1, &Device::Cpu, DType::F32, false);
    updates(&net, &mut trainer, 1);
    trainer.save(&mut net, &path).unwrap();
    let refused = |result: Result<()>, word: &str| {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(word), "{word}: {message}");
    };
    // A module that this trainer does not know.
    let mut stranger = self::net(1);
    refused(trainer.save(&mut stranger, &path), "not the one");
    refused(trainer.load(&mut stranger, &path), "not the one");
    // A training of something else, one with averages, one with less, and none.
    let mut smaller = Sequential::default().then(Linear::outputs_first(3, &[1], true, 0.5, init_keys(1)()).unwrap());
    let mut of_smaller = Trainer::new(&mut smaller, &Device::Cpu, options(DType::F32)).unwrap();
    refused(of_smaller.load(&mut smaller, &path), "has the counts [3.0.passes], the module []");
    let (mut averaged, mut of_averaged) = trained(1, &Device::Cpu, DType::F32, true);
    refused(of_averaged.load(&mut averaged, &path), "has no tensor trained.");
    of_averaged.save(&mut averaged, dir.path().join("averaged")).unwrap();
    refused(trainer.load(&mut net, dir.path().join("averaged")), "keeps none");
    net.state_dict().unwrap().save(dir.path().join("state")).unwrap();
    refused(trainer.load(&mut net, dir.path().join("state")), "it is not a saved training");
    std::fs::write(&path, b"short").unwrap();
    refused(trainer.load(&mut net, &path), "is damaged");
    refused(trainer.load(&mut net, dir.path().join("none")), "cannot read");
}
