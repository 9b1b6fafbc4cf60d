//! Mixed precision against f32: the same gradients but for the rounding to 11 bits, the same learning, and no harm from
//! an overflow.

use rustyflow::gpu::{AdapterChoice, Gpu, Limits};
use rustyflow::models::{Gpt2, LanguageModel, ModelConfig, ModelKind, Past};
use rustyflow::nn::{Dropout, Module};
use rustyflow::ops::Criterion;
use rustyflow::ops::random::Key;
use rustyflow::optim::{Kind, Optimizer, ParameterArena};
use rustyflow::tensor::DryRun;
use rustyflow::testing::assert_close;
use rustyflow::{DType, Device, Tensor};

fn devices() -> Vec<Device> {
    let choice = AdapterChoice { allow_software: true, ..AdapterChoice::default() };
    let gpu = match Gpu::open(&choice) {
        Ok(gpu) => Some(Device::Gpu(gpu)).filter(Device::has_f16),
        Err(error) => {
            assert!(std::env::var_os("RUSTYFLOW_REQUIRE_GPU").is_none(), "a GPU is required: {error}");
            None
        }
    };
    [Device::Cpu].into_iter().chain(gpu).collect()
}

/// A model, and its optimizer, in either precision from the same weights.
struct Training {
    model: Gpt2,
    parameters: ParameterArena,
    optimizer: Optimizer,
    ids: Tensor,
    targets: Tensor,
}

impl Training {
    fn new(device: &Device, operands: DType, kind: Kind, tie_embeddings: bool) -> Training {
        let config = ModelConfig {
            kind: ModelKind::GPT2,
            vocab_size: 68,
            block_size: 36,
            n_layer: 2,
            n_head: 2,
            n_embd: 64,
            bias: true,
            tie_embeddings,
            llama: None,
        };
        let mut model = Gpt2::new(config, 3).unwrap();
        let parameters = ParameterArena::new(&mut model, device, operands).unwrap();
        let optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0).unwrap();
        // Each id is followed by one of two, so that there is something to learn.
        let key = Key::new(5);
        let mut text = vec![7];
        for i in 0..4 * 36 {
            let last: u32 = text[i];
            text.push((3 * last + 1 + key.bits(i as u32) % 2) % 68);
        }
        let tensor = |ids: &[u32]| Tensor::from_u32(ids, [4, 36], device).unwrap();
        Training { ids: tensor(&text[..4 * 36]), targets: tensor(&text[1..]), model, parameters, optimizer }
    }

    fn backward(&self) -> f32 {
        self.parameters.zero_gradients();
        let dropout = Dropout::new(0.1, 1, 1);
        let loss = self
            .model
            .loss(&self.ids, &self.targets, Past::Nothing, &dropout, Criterion::default(), self.optimizer.loss_scale())
            .unwrap();
        loss.backward().unwrap();
        loss.item().unwrap()
    }

    /// The name and values of every parameter's gradient, without the scale of the loss.
    fn gradients(&mut self) -> Vec<(String, Vec<f32>)> {
        let scale = self.optimizer.loss_scale().map_or(1.0, |state| state.to_f32().unwrap()[0]);
        let of = |(name, tensor): (String, Tensor)| {
            let gradient = tensor.grad().unwrap().to_f32().unwrap();
            (name, gradient.iter().map(|g| g / scale).collect())
        };
        self.model.parameters().into_iter().map(of).collect()
    }

    fn weights(&mut self) -> Vec<Vec<u8>> {
        self.model.parameters().iter().map(|(_, tensor)| tensor.to_bytes().unwrap()).collect()
    }
}

const ADAMW: Kind = Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };

fn norm(x: impl Iterator<Item = f32>) -> f64 {
    x.map(|x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
}

#[test]
fn gradients_are_those_of_f32_to_within_a_hundredth() {
    for (device, tied) in devices().into_iter().flat_map(|device| [(device.clone(), true), (device, false)]) {
        let [mut single, mut mixed] =
            [DType::F32, DType::F16].map(|operands| Training::new(&device, operands, ADAMW, tied));
        let (want, got) = (single.backward(), mixed.backward());
        assert!((want - got).abs() < 2e-3, "{device}: loss {got}, in f32 {want}");
        let (single, mixed) = (single.gradients(), mixed.gradients());
        assert_eq!(single.len(), mixed.len());
        for ((name, want), (_, got)) in single.into_iter().zip(mixed) {
            assert_eq!(want.len(), got.len(), "{name}");
            let error = norm(want.iter().zip(&got).map(|(want, got)| want - got)) / norm(want.into_iter());
            assert!(error < 1e-2, "{device}, tied {tied}: {name} is off by {error:e} of its norm");
        }
    }
}

#[test]
fn a_step_converts_nothing_in_a_pass_of_its_own() {
    let dry_run = DryRun::new(Limits { f16: true, ..Limits::WEBGPU_DEFAULT });
    let mut training = Training::new(&Device::DryRun(dry_run.clone()), DType::F16, ADAMW, true);
    dry_run.take_plans();
    let loss = training
        .model
        .loss(&training.ids, &training.targets, Past::Nothing, &Dropout::new(0.1, 1, 1), Criterion::default(), None)
        .unwrap();
    loss.backward().unwrap();
    training.optimizer.step(&training.parameters, 1e-3).unwrap();
    let plans = dry_run.take_plans();
    let count = |name| plans.iter().filter(|(kernel, _)| *kernel == name).count();
    assert_eq!(count("layer_norm_backward"), 5);
    assert_eq!(count("cast"), 0);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn learning_is_that_of_f32() {
    // AdamW learns the same from gradients of any scale, SGD does not.
    let rules = [(ADAMW, 3e-3), (Kind::Sgd { momentum: 0.9, nesterov: false }, 0.1)];
    for (device, (kind, learning_rate)) in devices().into_iter().flat_map(|d| rules.map(|rule| (d.clone(), rule))) {
        let run = |operands| {
            let mut training = Training::new(&device, operands, kind, true);
            let losses: Vec<f32> = (0..30)
                .map(|_| {
                    let loss = training.backward();
                    training.optimizer.step(&training.parameters, learning_rate).unwrap();
                    loss
                })
                .collect();
            losses
        };
        let (single, mixed) = (run(DType::F32), run(DType::F16));
        assert!(single[29] < single[0] - 1.0, "{device}, {kind:?}: it learns something: {single:?}");
        assert_close(format!("{device}, {kind:?}: losses"), &mixed, &single, 0.01, 0.0);
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn an_overflow_changes_nothing_but_the_scale_and_is_recovered_from() {
    for device in devices() {
        let mut training = Training::new(&device, DType::F16, ADAMW, true);
        let too_large = 2f32.powi(40);
        let state = training.optimizer.loss_scale().unwrap().clone();
        state.write_bytes(bytemuck::cast_slice(&[too_large, 100.0, 0.0])).unwrap();
        let before = training.weights();
        training.backward();
        training.optimizer.step(&training.parameters, 1e-3).unwrap();
        assert_eq!(state.to_f32().unwrap(), [too_large / 2.0, 0.0, 1.0], "{device}");
        assert!(training.weights() == before, "{device}: a step that overflowed must change nothing");
        let mut steps = 1;
        while training.weights() == before {
            training.backward();
            training.optimizer.step(&training.parameters, 1e-3).unwrap();
            steps += 1;
            assert!(steps < 40, "{device}: the scale falls until gradients are finite");
        }
        let [scale, good, skipped] = state.to_f32().unwrap()[..] else { panic!("three numbers") };
        assert_eq!((good, skipped, scale), (1.0, steps as f32 - 1.0, too_large / 2f32.powi(steps - 1)), "{device}");
        assert_eq!(training.optimizer.skipped().to_u32().unwrap(), [0], "{device}: guards need not know");
    }
}

/// The optimizer looks at the gradients of parameters alone, and the stream's gradient, of f32, does not overflow.
#[test]
fn an_overflow_in_the_gradient_of_a_branch_shows_in_that_of_a_weight() {
    for device in devices() {
        for dropout in [None, Some((0.1, Key::new(1)))] {
            let leaf = |values: &[f32], shape: [usize; 2]| {
                Tensor::from_f32(values, shape, &device).unwrap().requires_grad().unwrap()
            };
            let stream = leaf(&[0.5, -1.0, 0.25, 2.0, 1.0, -0.5, 3.0, 1.5], [2, 4]);
            let weight = leaf(&[1.0; 12], [3, 4]);
            // Of the row that overflows the branch sees zeros alone: infinity times zero is not finite either.
            let h = Tensor::from_f32(&[1.0, 2.0, 3.0, 0.0, 0.0, 0.0], [2, 3], &device).unwrap();
            let h = h.to_dtype(DType::F16).unwrap();
            let scale = Tensor::from_f32(&[1.0; 4], [4], &device).unwrap();
            let branch = h.linear(&weight.to_dtype(DType::F16).unwrap(), false, None).unwrap();
            let (sum, normal) = stream.add_layer_norm(&branch, dropout, DType::F32, &scale, None, 1e-5).unwrap();
            let seed = Tensor::from_f32(&[1.0, 1.0, 1.0, 1.0, 1.0, 1e5, 1e5, 1e5], [2, 4], &device).unwrap();
            sum.add(&normal).unwrap().backward_with(&seed).unwrap();
            let finite = |x: &Tensor| x.grad().unwrap().to_f32().unwrap().iter().all(|g| g.is_finite());
            assert!(finite(&stream), "{device}, {dropout:?}");
            assert!(!finite(&weight), "{device}, {dropout:?}");
        }
    }
}
