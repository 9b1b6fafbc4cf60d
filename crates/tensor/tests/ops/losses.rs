//! What the losses promise beyond their values on ordinary inputs.

use rustyflow_tensor::ops::{Criterion, IGNORED};
use rustyflow_tensor::{Device, Tensor};

fn devices() -> Vec<Device> {
    let mut devices = vec![Device::Cpu];
    devices.extend(crate::common::gpu());
    devices
}

/// The loss, and the gradient of `factor` times the loss with respect to the logits.
fn loss_and_gradient(logits: &[f32], targets: &[u32], factor: f32, device: &Device) -> (f32, Vec<f32>) {
    weighed(logits, targets, factor, 0.0, None, device)
}

/// The same with label smoothing and class weights.
fn weighed(
    logits: &[f32],
    targets: &[u32],
    factor: f32,
    label_smoothing: f32,
    weights: Option<&[f32]>,
    device: &Device,
) -> (f32, Vec<f32>) {
    let weights = weights.map(|weights| Tensor::from_f32(weights, [weights.len()], device).unwrap());
    let criterion = Criterion { label_smoothing, class_weights: weights.as_ref() };
    let shape = [targets.len(), logits.len() / targets.len()];
    let logits = Tensor::from_f32(logits, shape, device).unwrap().requires_grad().unwrap();
    let targets = Tensor::from_u32(targets, [targets.len()], device).unwrap();
    let loss = logits.cross_entropy(&targets, criterion).unwrap();
    assert_eq!(loss.shape().len(), 0, "the loss is a scalar");
    loss.scale(factor).unwrap().backward().unwrap();
    (loss.item().unwrap(), logits.grad().unwrap().to_f32().unwrap())
}

/// The same in f64: the mean cross-entropy with targets of which a part is spread evenly, and weights of classes.
fn definition(logits: &[f32], targets: &[u32], factor: f64, smoothing: f64, weights: &[f32]) -> (f64, Vec<f64>) {
    let vocab = logits.len() / targets.len();
    let weight = |j: usize| f64::from(weights[j]);
    let valid: f64 = targets.iter().filter(|&&t| t != IGNORED).map(|&t| weight(t as usize)).sum();
    let (mut loss, mut gradient) = (0.0, Vec::new());
    for (x, &target) in logits.chunks(vocab).zip(targets) {
        let top = x.iter().copied().fold(f32::MIN, f32::max);
        let lse = f64::from(top) + x.iter().map(|&x| (f64::from(x) - f64::from(top)).exp()).sum::<f64>().ln();
        if target == IGNORED {
            gradient.extend(x.iter().map(|_| 0.0));
            continue;
        }
        let onehot = |j: usize| f64::from(j == target as usize);
        let wanted = |j: usize| ((1.0 - smoothing) * onehot(j) + smoothing / vocab as f64) * weight(j);
        let total: f64 = (0..vocab).map(wanted).sum();
        loss += (0..vocab).map(|j| wanted(j) * (lse - f64::from(x[j]))).sum::<f64>() / valid;
        gradient.extend((0..vocab).map(|j| (total * (f64::from(x[j]) - lse).exp() - wanted(j)) * factor / valid));
    }
    (loss, gradient)
}

#[test]
fn cross_entropy_is_the_definition_for_every_vocabulary() {
    for device in devices() {
        for vocab in [1, 3, 17, 65, 100, 50_304] {
            let rows = if vocab > 1000 { 3 } else { 11 };
            let logits: Vec<f32> = crate::common::uniform(rows * vocab, 5).iter().map(|x| 8.0 * x).collect();
            let target = |row: usize| if row % 4 == 1 { IGNORED } else { (row * 7919 % vocab) as u32 };
            let targets: Vec<u32> = (0..rows).map(target).collect();
            let (loss, gradient) = loss_and_gradient(&logits, &targets, -3.0, &device);
            let (want, want_gradient) = definition(&logits, &targets, -3.0, 0.0, &vec![1.0; vocab]);
            // 16 is the largest number that is rounded on the way.
            assert!((f64::from(loss) - want).abs() < 4e-6, "{device}, V {vocab}: loss {loss}, want {want}");
            let want_gradient: Vec<f32> = want_gradient.iter().map(|x| *x as f32).collect();
            let case = format!("{device}, V {vocab}");
            // exp of a number whose error is 1e-6; next to 1, which is subtracted for the target, one rounding is 6e-8.
            let worst = crate::common::differences(&case, "gradient", &gradient, &want_gradient, 1e-7, 5e-6);
            assert!(worst.is_none(), "{}", worst.unwrap());
        }
    }
}

#[test]
fn smoothed_and_weighted_losses_are_the_definition_for_every_vocabulary() {
    for device in devices() {
        for vocab in [1, 3, 17, 65, 100, 50_304] {
            let rows = if vocab > 1000 { 3 } else { 11 };
            // Far from 0, which must not show.
            let logits: Vec<f32> = crate::common::uniform(rows * vocab, 5).iter().map(|x| 8.0 * x + 64.0).collect();
            let target = |row: usize| if row % 4 == 1 { IGNORED } else { (row * 7919 % vocab) as u32 };
            let targets: Vec<u32> = (0..rows).map(target).collect();
            let weights: Vec<f32> = (0..vocab).map(|j| 0.5 + (j % 5) as f32).collect();
            let ones = vec![1.0; vocab];
            for (smoothing, weights) in [(0.1, None), (1.0, None), (0.0, Some(&weights)), (0.3, Some(&weights))] {
                let (loss, gradient) = weighed(&logits, &targets, -3.0, smoothing, weights.map(|w| &w[..]), &device);
                let (want, want_gradient) =
                    definition(&logits, &targets, -3.0, f64::from(smoothing), weights.unwrap_or(&ones));
                let case = format!("{device}, V {vocab}, smoothing {smoothing}, weighted {}", weights.is_some());
                // As of the plain loss; and the mean of V differences of up to 16, each lane of a few thousand.
                assert!((f64::from(loss) - want).abs() < 1e-5, "{case}: loss {loss}, want {want}");
                let want_gradient: Vec<f32> = want_gradient.iter().map(|x| *x as f32).collect();
                let worst = crate::common::differences(&case, "gradient", &gradient, &want_gradient, 2e-7, 5e-6);
                assert!(worst.is_none(), "{}", worst.unwrap());
            }
        }
    }
}

#[test]
fn targets_that_weigh_nothing_leave_no_loss_and_bad_ones_still_show() {
    for device in devices() {
        for smoothing in [0.0, 0.2] {
            let of = |targets: &[u32]| {
                weighed(&[1.0, 2.0, 3.0, 4.0, 5.0, 7.0], targets, 1.0, smoothing, Some(&[0.0, 2.0, 1.0]), &device)
            };
            assert_eq!(of(&[0, 0]), (0.0, vec![0.0; 6]), "{device}");
            assert_eq!(of(&[IGNORED, IGNORED]), (0.0, vec![0.0; 6]), "{device}");
            let (loss, gradient) = of(&[1, 3]);
            assert!(loss.is_nan() && gradient[3..].iter().all(|x| x.is_nan()), "{device}: {loss} {gradient:?}");
            assert!(gradient[..3].iter().all(|x| x.is_finite()), "{device}: {gradient:?}");
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
        let worst = crate::common::differences("huge", "gradient", &gradient, &want, 1e-6, 0.0);
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
