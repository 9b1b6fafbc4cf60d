//! What the losses promise beyond their values on ordinary inputs.

mod common;

use rustyflow::ops::IGNORED;
use rustyflow::{Device, Tensor};

fn devices() -> Vec<Device> {
    let mut devices = vec![Device::Cpu];
    devices.extend(common::gpu());
    devices
}

/// The loss, and the gradient of `factor` times the loss with respect to the logits.
fn loss_and_gradient(logits: &[f32], targets: &[u32], factor: f32, device: &Device) -> (f32, Vec<f32>) {
    let shape = [targets.len(), logits.len() / targets.len()];
    let logits = Tensor::from_f32(logits, shape, device).unwrap().requires_grad().unwrap();
    let targets = Tensor::from_u32(targets, [targets.len()], device).unwrap();
    let loss = logits.cross_entropy(&targets).unwrap();
    assert_eq!(loss.shape().len(), 0, "the loss is a scalar");
    loss.scale(factor).unwrap().backward().unwrap();
    (loss.item().unwrap(), logits.grad().unwrap().to_f32().unwrap())
}

/// The same in f64.
fn definition(logits: &[f32], targets: &[u32], factor: f64) -> (f64, Vec<f64>) {
    let vocab = logits.len() / targets.len();
    let valid = targets.iter().filter(|&&t| t != IGNORED).count().max(1) as f64;
    let (mut loss, mut gradient) = (0.0, Vec::new());
    for (x, &target) in logits.chunks(vocab).zip(targets) {
        let top = x.iter().copied().fold(f32::MIN, f32::max);
        let lse = f64::from(top) + x.iter().map(|&x| (f64::from(x) - f64::from(top)).exp()).sum::<f64>().ln();
        let keep = if target == IGNORED { 0.0 } else { factor / valid };
        if target != IGNORED {
            loss += (lse - f64::from(x[target as usize])) / valid;
        }
        for (j, &x) in x.iter().enumerate() {
            let onehot = f64::from(j == target as usize);
            gradient.push(((f64::from(x) - lse).exp() - onehot) * keep);
        }
    }
    (loss, gradient)
}

#[test]
fn cross_entropy_is_the_definition_for_every_vocabulary() {
    for device in devices() {
        for vocab in [1, 3, 17, 65, 100, 50_304] {
            let rows = if vocab > 1000 { 3 } else { 11 };
            let logits: Vec<f32> = common::uniform(rows * vocab, 5).iter().map(|x| 8.0 * x).collect();
            let target = |row: usize| if row % 4 == 1 { IGNORED } else { (row * 7919 % vocab) as u32 };
            let targets: Vec<u32> = (0..rows).map(target).collect();
            let (loss, gradient) = loss_and_gradient(&logits, &targets, -3.0, &device);
            let (want, want_gradient) = definition(&logits, &targets, -3.0);
            // 16 is the largest number that is rounded on the way.
            assert!((f64::from(loss) - want).abs() < 4e-6, "{device}, V {vocab}: loss {loss}, want {want}");
            let want_gradient: Vec<f32> = want_gradient.iter().map(|x| *x as f32).collect();
            let case = format!("{device}, V {vocab}");
            // exp of a number whose error is 1e-6; next to 1, which is subtracted for the target, one rounding is 6e-8.
            let worst = common::differences(&case, "gradient", &gradient, &want_gradient, 1e-7, 5e-6);
            assert!(worst.is_none(), "{}", worst.unwrap());
        }
    }
}

#[test]
fn cross_entropy_without_any_target_is_zero() {
    for device in devices() {
        let (loss, gradient) = loss_and_gradient(&[1.0, 2.0, 3.0, 4.0], &[IGNORED, IGNORED], 1.0, &device);
        assert_eq!((loss, gradient), (0.0, vec![0.0; 4]), "{device}");
    }
}

#[test]
fn cross_entropy_stands_huge_logits() {
    for device in devices() {
        let logits = [1e38, -1e38, 0.0, -1e30, -1e30, -1e30];
        let (loss, gradient) = loss_and_gradient(&logits, &[0, 2], 2.0, &device);
        // The first row is certain; in the second all classes are equally likely.
        let want = [0.0, 0.0, 0.0, 1.0 / 3.0, 1.0 / 3.0, -2.0 / 3.0];
        assert!((loss - 3f32.ln() / 2.0).abs() < 1e-6, "{device}: {loss}");
        let worst = common::differences("huge", "gradient", &gradient, &want, 1e-6, 0.0);
        assert!(worst.is_none(), "{device}: {}", worst.unwrap());
    }
}

#[test]
fn cross_entropy_of_a_target_outside_the_vocabulary_is_nan() {
    for device in devices() {
        for wrong in [3, 1000, IGNORED - 1] {
            let (loss, gradient) = loss_and_gradient(&[1.0; 9], &[0, wrong, IGNORED], 1.0, &device);
            assert!(loss.is_nan(), "{device}: target {wrong} gave {loss}");
            assert!(gradient[..3].iter().all(|x| x.is_finite()), "{device}: {gradient:?}");
            assert!(gradient[3..6].iter().all(|x| x.is_nan()), "{device}: {gradient:?}");
            assert_eq!(gradient[6..], [0.0; 3], "{device}");
        }
    }
}
