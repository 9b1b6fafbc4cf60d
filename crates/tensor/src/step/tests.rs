use super::*;
use crate::nn::{Linear, Module, Parameter, init_keys, join};
use crate::optim::testing::precisions;
use crate::optim::{Kind, Optimizer, ParameterArena};
use crate::testing::faults::Countdown;
use crate::{DType, Device};

/// Two layers, on a device with AdamW and averages.
struct Trained {
    layers: [Linear; 2],
    parameters: Option<ParameterArena>,
    optimizer: Option<Optimizer>,
}

impl Module for Trained {
    fn visit_parameters(&mut self, prefix: &str, visit: &mut dyn FnMut(&str, &mut Parameter)) {
        let [first, second] = &mut self.layers;
        first.visit_parameters(&join(prefix, "first"), visit);
        second.visit_parameters(&join(prefix, "second"), visit);
    }
}

impl Trained {
    fn new(device: &Device, operands: DType) -> Trained {
        let mut keys = init_keys(3);
        let layers = [(16, 32), (32, 16)].map(|(i, o)| Linear::new(i, o, true, 0.5, keys()).unwrap());
        let mut trained = Trained { layers, parameters: None, optimizer: None };
        let parameters = ParameterArena::new(&mut trained, device, operands).unwrap();
        let kind = Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
        let mut optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0).unwrap();
        optimizer.keep_averages(&parameters, 0.9).unwrap();
        (trained.parameters, trained.optimizer) = (Some(parameters), Some(optimizer));
        trained
    }

    /// Step number `number`, of three micro-batches.
    fn step(&mut self, number: usize, sync: &mut dyn GradientSync) -> Result<Outcome> {
        let (Some(parameters), Some(optimizer)) = (&self.parameters, &mut self.optimizer) else { panic!("new") };
        let (device, layers) = (parameters.values().device(), &self.layers);
        let loss = |micro: usize, _: Option<&Tensor>| {
            let x = (0..4 * 16).map(|i| ((7 * i + 5 * micro + 11 * number) % 19) as f32 / 10.0 - 0.9);
            let x = Tensor::from_f32(&x.collect::<Vec<_>>(), [4, 16], &device)?;
            let y = layers[0].forward(&x, &crate::nn::Dropout::off())?.tanh()?;
            let y = layers[1].forward(&y, &crate::nn::Dropout::new(0.2, 5, (3 * number + micro) as u64))?;
            y.mul(&y)?.mean([0, 1])
        };
        step(Training { parameters, optimizer, sync }, &[], Losses::Means, 0..3, loss, 0.01)
    }

    /// All that a step changes: weights, moments with the loss scale, averages, and counts, as bits.
    fn state(&self) -> Vec<Vec<u8>> {
        let (Some(parameters), Some(optimizer)) = (&self.parameters, &self.optimizer) else { panic!("new") };
        let moments = optimizer.moments().into_iter().map(|(_, tensor)| tensor);
        let other = optimizer.averages().into_iter().chain(optimizer.loss_scale()).chain([optimizer.skipped()]);
        let tensors = parameters.stored().chain(moments).chain(other);
        let counts = optimizer.updates().to_le_bytes().to_vec();
        tensors.map(|tensor| tensor.to_bytes().unwrap()).chain([counts]).collect()
    }
}

/// One device, whose calls are counted as those of ranks are matched.
#[derive(Default)]
struct Counted {
    begun: usize,
    ended: usize,
}

impl GradientSync for Counted {
    fn begin(&mut self, _: &[&[u32]]) -> Result<()> {
        assert_eq!(self.begun, self.ended, "an attempt begins while another is open");
        self.begun += 1;
        Ok(())
    }

    fn last_backward(&mut self, _: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        backward()
    }

    fn synchronize(&mut self, _: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>> {
        Ok(Some(loss))
    }

    fn vote(&mut self) -> Result<bool> {
        self.ended += 1;
        Ok(true)
    }

    fn abort(&mut self) -> Result<()> {
        self.ended += 1;
        Ok(())
    }

    fn gather(&mut self, _: &ParameterArena, _: &Optimizer) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_step_aborted_at_any_allocation_changes_nothing_and_the_next_has_the_same_bits() {
    for (device, operands) in precisions() {
        let mut undisturbed = Trained::new(&device, operands);
        let mut trained = Trained::new(&device, operands);
        for number in 0..2 {
            undisturbed.step(number, &mut SingleDevice).unwrap();
            let (before, mut sync, countdown) = (trained.state(), Counted::default(), Countdown::own());
            let mut aborted = 0;
            loop {
                countdown.start(aborted);
                let outcome = trained.step(number, &mut sync);
                if countdown.stop().is_some() {
                    assert!(matches!(outcome, Ok(Outcome::Committed(_))), "{device}: nothing failed");
                    break;
                }
                let what = format!("{device} {operands:?}, step {number}, allocation {aborted}");
                assert!(matches!(outcome, Err(Error::OutOfMemory { .. })), "{what} fails");
                assert_eq!(sync.begun, sync.ended, "{what}: the ranks are left waiting");
                assert!(trained.state() == before, "{what}: the step has changed what it must leave");
                aborted += 1;
            }
            assert!(aborted > 20, "{device}: {aborted} allocations");
            assert_eq!(sync.ended, aborted + 1, "{device}");
            assert!(trained.state() == undisturbed.state(), "{device} {operands:?}, step {number}: other bits");
        }
    }
}

#[test]
fn an_attempt_that_is_dropped_is_aborted_once() {
    let trained = Trained::new(&Device::Cpu, DType::F32);
    let (parameters, mut optimizer) = (trained.parameters.unwrap(), trained.optimizer.unwrap());
    let mut sync = Counted::default();
    let mut attempt = Attempt::new(Training { parameters: &parameters, optimizer: &mut optimizer, sync: &mut sync });
    attempt.begin(&[], 1, 0.1).unwrap();
    drop(attempt);
    assert_eq!((sync.begun, sync.ended), (1, 1));
}
