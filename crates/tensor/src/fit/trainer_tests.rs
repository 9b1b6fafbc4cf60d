use super::*;
use crate::nn::{Dropout, Linear, Parameter, init_keys, join};

const ADAM: Kind = Kind::Adam { beta1: 0.9, beta2: 0.99, eps: 1e-8 };
const SGD: Kind = Kind::Sgd { momentum: 0.0, nesterov: false };

/// Two layers.
struct Net([Linear; 2]);

impl Net {
    fn new() -> Net {
        let mut keys = init_keys(3);
        Net([(3, 8), (8, 1)].map(|(inputs, outputs)| Linear::new(inputs, outputs, true, 0.5, keys()).unwrap()))
    }

    /// The mean squared error, times `factor`.
    fn loss(&self, (x, y): &(Tensor, Tensor), factor: f32) -> Result<Tensor> {
        let hidden = self.0[0].forward(x, &Dropout::off())?.tanh()?;
        let error = self.0[1].forward(&hidden, &Dropout::off())?.sub(y)?;
        error.mul(&error)?.mean([0, 1])?.scale(factor)
    }

    fn weights(&mut self) -> Vec<f32> {
        self.parameters().iter().flat_map(|(_, tensor)| tensor.to_f32().unwrap()).collect()
    }
}

impl Module for Net {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        let [first, second] = &mut self.0;
        first.visit_parameters(&join(prefix, "first"), visit);
        second.visit_parameters(&join(prefix, "second"), visit);
    }
}

/// Rows (N, 3) and targets (N, 1): those of numbers `from` to `to`.
fn rows(from: usize, to: usize, device: &Device) -> (Tensor, Tensor) {
    let x: Vec<f32> = (3 * from..3 * to).map(|i| ((i * 37) % 19) as f32 / 10.0 - 0.9).collect();
    let y: Vec<f32> = x.chunks(3).map(|x| x[0] * x[1] - 0.5 * x[2]).collect();
    let n = to - from;
    (Tensor::from_f32(&x, [n, 3], device).unwrap(), Tensor::from_f32(&y, [n, 1], device).unwrap())
}

fn trainer(net: &mut Net, device: &Device, options: TrainerOptions) -> Trainer {
    Trainer::new(net, device, options).unwrap()
}

/// f32 rounds the sums in another order.
fn assert_close(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= tolerance, "{what}: {got}, expected {want}");
    }
}

#[test]
fn micro_batches_add_up_to_the_batch() {
    for device in Device::for_tests() {
        let precisions = [DType::F32].into_iter().chain(device.has_f16().then_some(DType::F16));
        for operands in precisions {
            // The decay is not what gradients add up to, the clipping is of their sum.
            let options = TrainerOptions::new(SGD, LearningRate::constant(0.1)).weight_decay(0.01).grad_clip(0.5);
            let options = TrainerOptions { operands, ..options };
            let [mut whole, mut parts] = [Net::new(), Net::new()];
            let [mut of_whole, mut of_parts] = [&mut whole, &mut parts].map(|net| trainer(net, &device, options));
            for step in 0..4 {
                let start = 12 * step;
                let batch = rows(start, start + 12, &device);
                let one = of_whole.step(|| whole.loss(&batch, 1.0)).unwrap().numbers().unwrap();
                let micro_batches = [0, 4, 8].map(|at| rows(start + at, start + at + 4, &device));
                let update = of_parts.step_accumulated(&micro_batches, |batch| parts.loss(batch, 1.0)).unwrap();
                let sum = update.numbers().unwrap();
                // Mixed, gradients are rounded to 11 bits.
                let tolerance = if operands == DType::F32 { 1e-5 } else { 2e-3 };
                assert!((one.loss - sum.loss).abs() < tolerance, "{device} {operands:?}: {one:?}, {sum:?}");
                assert!((one.grad_norm - sum.grad_norm).abs() < 2.0 * tolerance, "{device} {operands:?}");
                assert_close(&parts.weights(), &whole.weights(), tolerance as f32, &format!("{device} {operands:?}"));
            }
        }
    }
}

/// Beside the arithmetic by hand: SGD of the clipped gradients, at the rates of the schedule.
#[test]
fn an_update_is_that_of_the_clipped_gradients_at_the_rate_of_the_schedule() {
    for device in Device::for_tests() {
        let rate = LearningRate::linear(0.2, 0.0, 4).warm_up(1);
        let (mut net, batch) = (Net::new(), rows(0, 6, &device));
        let mut trainer = trainer(&mut net, &device, TrainerOptions::new(SGD, rate).grad_clip(0.25));
        for (step, want_rate) in [0.1, 0.2, 0.2 * 2.0 / 3.0].into_iter().enumerate() {
            let before = net.weights();
            let update = trainer.step(|| net.loss(&batch, 1.0)).unwrap();
            assert!((update.learning_rate - want_rate).abs() < 1e-12, "step {step}");
            let gradients: Vec<f32> =
                net.parameters().iter().flat_map(|(_, p)| p.grad().unwrap().to_f32().unwrap()).collect();
            let norm = gradients.iter().map(|g| f64::from(*g) * f64::from(*g)).sum::<f64>().sqrt();
            let numbers = update.numbers().unwrap();
            assert!(norm > 0.25, "it is clipped: {norm}");
            assert!((numbers.grad_norm - norm).abs() < 1e-5 * norm, "{device}: {numbers:?}, not {norm}");
            let factor = (want_rate * 0.25 / norm) as f32;
            let want: Vec<f32> = before.iter().zip(&gradients).map(|(p, g)| p - factor * g).collect();
            assert_close(&net.weights(), &want, 1e-6, &format!("{device}, step {step}"));
        }
        assert_eq!(trainer.updates(), 3);
    }
}

/// The scale starts at 65536: the gradient of a loss times 1e4 overflows f16 until it is small enough.
#[test]
fn mixed_precision_skips_what_overflows_and_then_learns() {
    for device in Device::for_tests().into_iter().filter(Device::has_f16) {
        let (mut net, batch) = (Net::new(), rows(0, 16, &device));
        let options = TrainerOptions::new(ADAM, LearningRate::constant(0.02)).mixed();
        let mut trainer = trainer(&mut net, &device, options);
        let before = net.weights();
        let first = trainer.step(|| net.loss(&batch, 1e4)).unwrap().numbers().unwrap();
        let scale = first.loss_scale.unwrap();
        assert_eq!((scale.scale, scale.overflows, first.skipped), (32_768.0, 1, 0), "{device}");
        assert_eq!(net.weights(), before, "{device}: an overflow changes nothing");
        let numbers: Vec<Numbers> =
            (0..150).map(|_| trainer.step(|| net.loss(&batch, 1e4)).unwrap().numbers().unwrap()).collect();
        let last = numbers[149];
        assert!(last.loss < 0.2 * first.loss, "{device}: from {first:?} to {last:?}");
        assert!(last.loss_scale.unwrap().overflows < 40 && last.skipped == 0, "{device}: {last:?}");
    }
}

#[test]
fn a_loss_that_is_no_number_is_skipped_and_counted() {
    for device in Device::for_tests() {
        let (mut net, batch) = (Net::new(), rows(0, 6, &device));
        let mut trainer = trainer(&mut net, &device, TrainerOptions::new(ADAM, LearningRate::constant(0.1)));
        let before = net.weights();
        let numbers = trainer.step(|| net.loss(&batch, f32::INFINITY)).unwrap().numbers().unwrap();
        assert!(!numbers.grad_norm.is_finite() && numbers.skipped == 1, "{device}: {numbers:?}");
        assert_eq!(net.weights(), before, "{device}");
        let numbers = trainer.step(|| net.loss(&batch, 1.0)).unwrap().numbers().unwrap();
        assert!(numbers.grad_norm.is_finite() && numbers.skipped == 1, "{device}: {numbers:?}");
        assert_ne!(net.weights(), before, "{device}");
    }
}

#[test]
fn what_makes_no_update_is_refused_and_leaves_the_parameters() {
    for device in Device::for_tests() {
        let (mut net, batch) = (Net::new(), rows(0, 6, &device));
        let mut trainer = trainer(&mut net, &device, TrainerOptions::new(ADAM, LearningRate::constant(0.1)));
        let before = net.weights();
        let mut message = |loss: &dyn Fn() -> Result<Tensor>| trainer.step(loss).err().unwrap().to_string();
        assert!(message(&|| Ok(batch.0.clone())).contains("one element"));
        assert!(message(&|| net.0[0].forward(&batch.0, &Dropout::off())).contains("(6, 8)"));
        assert!(message(&|| Tensor::full(1.0, [1], &device)).contains("was not computed from"));
        assert!(message(&|| Tensor::from_u32(&[1], [1], &device)).contains("u32"));
        assert!(message(&|| Err(Error::Invalid("no batch today".into()))).contains("no batch today"));
        let none = trainer.step_accumulated(Vec::<(Tensor, Tensor)>::new(), |batch| net.loss(&batch, 1.0));
        assert!(none.err().unwrap().to_string().contains("at least one micro-batch"));
        assert_eq!((net.weights() == before, trainer.updates()), (true, 0), "{device}");
        // Nothing of these is left in the gradients.
        let (mut other, update) = (Net::new(), trainer.step(|| net.loss(&batch, 1.0)).unwrap());
        let options = TrainerOptions::new(ADAM, LearningRate::constant(0.1));
        let mut fresh = Trainer::new(&mut other, &device, options).unwrap();
        let alone = fresh.step(|| other.loss(&batch, 1.0)).unwrap();
        assert_eq!(update.numbers().unwrap(), alone.numbers().unwrap(), "{device}");
    }
}

#[test]
fn options_out_of_range_are_refused() {
    let refused = |options: TrainerOptions| Trainer::new(&mut Net::new(), &Device::Cpu, options).err().unwrap();
    let good = TrainerOptions::new(ADAM, LearningRate::constant(0.1));
    for (options, word) in [
        (good.weight_decay(-0.1), "weight_decay"),
        (good.grad_clip(f64::NAN), "grad_clip"),
        (TrainerOptions::new(ADAM, LearningRate::constant(f64::INFINITY)), "learning rate"),
        (TrainerOptions { kind: Kind::Adam { beta1: 1.0, beta2: 0.9, eps: 1e-8 }, ..good }, "beta1"),
        (TrainerOptions { kind: Kind::Adam { beta1: 0.9, beta2: 0.9, eps: 0.0 }, ..good }, "eps"),
        (TrainerOptions { kind: Kind::Sgd { momentum: f64::NAN, nesterov: true }, ..good }, "momentum"),
        (TrainerOptions { operands: DType::U32, ..good }, "u32"),
    ] {
        let message = refused(options).to_string();
        assert!(message.contains(word), "{word}: {message}");
    }
    let mut net = Net::new();
    let mut trainer = trainer(&mut net, &Device::Cpu, good);
    assert!(trainer.keep_averages(1.0).is_err() && trainer.keep_averages(0.9).is_ok());
}

#[test]
fn averages_change_places_with_the_weights() {
    for device in Device::for_tests() {
        let (mut net, batch) = (Net::new(), rows(0, 6, &device));
        let mut trainer = trainer(&mut net, &device, TrainerOptions::new(ADAM, LearningRate::constant(0.1)));
        let before = net.weights();
        trainer.keep_averages(0.5).unwrap();
        trainer.step(|| net.loss(&batch, 1.0)).unwrap();
        let after = net.weights();
        trainer.swap_averages().unwrap();
        // The first decay is 2/11.
        let want: Vec<f32> = before.iter().zip(&after).map(|(b, a)| b + (a - b) * 9.0 / 11.0).collect();
        assert_close(&net.weights(), &want, 1e-6, &device.to_string());
        trainer.swap_averages().unwrap();
        assert_eq!(net.weights(), after, "{device}");
    }
}

/// Threads upload while others compute; on a GPU both go through one queue.
#[test]
fn threads_that_load_do_not_show_in_the_bits() {
    use crate::fit::{Array, Arrays, DataLoader, LoaderOptions};
    for device in Device::for_tests() {
        let trained = |workers| {
            let (x, y) = rows(0, 60, &Device::Cpu);
            let arrays = [(x, 3), (y, 1)].map(|(t, width)| Array::f32(&t.to_f32().unwrap(), [60, width]).unwrap());
            let options = LoaderOptions::of(8).shuffled(2).workers(workers);
            let loader = DataLoader::new(Arrays::new(arrays.into()).unwrap(), options, &device).unwrap();
            let mut net = Net::new();
            let mut trainer = trainer(&mut net, &device, TrainerOptions::new(ADAM, LearningRate::constant(0.02)));
            let mut losses = Vec::new();
            for batch in loader.epochs(0..6).unwrap() {
                let [x, y] = batch.unwrap().take().unwrap();
                losses.push(trainer.step(|| net.loss(&(x.clone(), y.clone()), 1.0)).unwrap().read_later().unwrap());
            }
            let losses: Vec<f64> = losses.into_iter().map(|numbers| numbers.wait().unwrap().loss).collect();
            (losses, net.weights())
        };
        let alone = trained(0);
        assert_eq!(alone.0.len(), 6 * 8);
        assert!(alone.0[40..].iter().sum::<f64>() < 0.5 * alone.0[..8].iter().sum::<f64>(), "{device}: {:?}", alone.0);
        for workers in [1, 3] {
            assert_eq!(trained(workers), alone, "{device}: {workers} threads");
        }
    }
}
