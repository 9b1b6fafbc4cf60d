use super::*;
use crate::optim::Kind;
use crate::optim::testing::{ADAMW, Net};
use crate::testing::faults::Countdown;
use crate::{DType, Device};

/// A net that is trained on two micro-batches of ids, with averages, in mixed precision where the device has it.
struct Training {
    net: Net,
    parameters: ParameterArena,
    optimizer: Optimizer,
    micro_batches: [Tensor; 2],
}

impl Training {
    fn new(device: &Device, kind: Kind) -> Training {
        let mut net = Net::new(3);
        let operands = if device.has_f16() { DType::F16 } else { DType::F32 };
        let parameters = ParameterArena::new(&mut net, device, operands).unwrap();
        let mut optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0).unwrap();
        optimizer.keep_averages(&parameters, 0.9).unwrap();
        let ids = |seed: u32| (0..40).map(|i| (i * i + seed) % Net::VOCAB as u32).collect::<Vec<_>>();
        let micro_batches = [1, 2].map(|seed| Tensor::from_u32(&ids(seed), [40], device).unwrap());
        Training { net, parameters, optimizer, micro_batches }
    }

    fn step(&mut self, sync: &mut dyn GradientSync) -> Result<Option<Stepped>> {
        let scale = self.optimizer.loss_scale().cloned();
        let (net, half) = (&self.net, 0.5);
        let forward = |ids: &Tensor| Ok(net.loss(ids, scale.as_ref())?.scale(half)?.into());
        step(&self.parameters, &mut self.optimizer, sync, 0.01, &self.micro_batches, forward)
    }

    /// All that a step may change.
    fn state(&self) -> Vec<Vec<u8>> {
        let moments = self.optimizer.moments().into_iter().map(|(_, tensor)| tensor.clone());
        let scale = self.optimizer.loss_scale().cloned().into_iter();
        let others = [self.parameters.values(), self.optimizer.averages().unwrap(), self.optimizer.skipped()];
        let all = others.into_iter().cloned().chain(moments).chain(scale);
        all.map(|tensor| tensor.to_bytes().unwrap().to_vec()).collect()
    }
}

/// Notes the calls; each fails, or another rank aborts, where a test wants it.
#[derive(Default)]
struct Calls {
    made: Vec<&'static str>,
    aborted_at: &'static str,
}

impl GradientSync for Calls {
    fn begin(&mut self) -> Result<()> {
        self.made.push("begin");
        Ok(())
    }

    fn last_backward(&mut self, _: &ParameterArena, backward: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.made.push("last_backward");
        backward()
    }

    fn reduce(&mut self, _: &ParameterArena, loss: Tensor) -> Result<Option<Tensor>> {
        self.made.push("reduce");
        Ok((self.aborted_at != "reduce").then_some(loss))
    }

    fn commit(&mut self) -> Result<bool> {
        self.made.push("commit");
        Ok(self.aborted_at != "commit")
    }

    fn abort(&mut self) -> Result<()> {
        self.made.push("abort");
        Ok(())
    }

    fn gather(&mut self, _: &ParameterArena, _: &Optimizer) -> Result<()> {
        self.made.push("gather");
        Ok(())
    }
}

#[test]
fn a_step_that_runs_out_of_memory_anywhere_changes_nothing_and_is_made_again_with_the_same_bits() {
    for device in Device::for_tests() {
        let mut undisturbed = Training::new(&device, ADAMW);
        for _ in 0..2 {
            undisturbed.step(&mut SingleDevice).unwrap();
        }
        let want = undisturbed.state();
        let mut training = Training::new(&device, ADAMW);
        training.step(&mut SingleDevice).unwrap();
        let before = training.state();
        let countdown = Countdown::own();
        // The second step, with every allocation failing in turn, until one has no more.
        for number in 0.. {
            let mut calls = Calls::default();
            countdown.start(number);
            let result = training.step(&mut calls);
            if countdown.stop().is_some() {
                assert!(result.unwrap().is_some(), "{device}");
                assert_eq!(calls.made, ["begin", "last_backward", "reduce", "commit", "gather"]);
                assert!(number > 20, "{device}: {number} allocations");
                break;
            }
            assert!(matches!(result, Err(Error::OutOfMemory { .. })), "{device}, allocation {number}");
            assert_eq!(calls.made.last(), Some(&"abort"), "{device}, allocation {number}: {:?}", calls.made);
            assert!(!calls.made.contains(&"commit"), "{device}, allocation {number}: {:?}", calls.made);
            assert!(training.state() == before, "{device}, allocation {number}");
        }
        assert!(training.state() == want, "{device}");
    }
}

#[test]
fn a_step_that_another_rank_aborts_changes_nothing() {
    for device in Device::for_tests() {
        let mut training = Training::new(&device, ADAMW);
        let before = training.state();
        for aborted_at in ["reduce", "commit"] {
            let mut calls = Calls { aborted_at, ..Calls::default() };
            assert!(training.step(&mut calls).unwrap().is_none());
            assert_eq!(calls.made.last(), Some(&aborted_at));
            assert!(training.state() == before, "{device}: aborted at {aborted_at}");
        }
        training.step(&mut Calls::default()).unwrap().unwrap();
        assert!(training.state() != before, "{device}");
    }
}

#[test]
fn a_step_of_no_micro_batches_is_an_error() {
    let Training { net, parameters, mut optimizer, .. } = Training::new(&Device::Cpu, ADAMW);
    let none: [Tensor; 0] = [];
    let forward = |ids: &Tensor| Ok(net.loss(ids, None)?.into());
    let result = step(&parameters, &mut optimizer, &mut SingleDevice, 0.01, &none, forward);
    assert!(matches!(result, Err(Error::Invalid(_))));
}
