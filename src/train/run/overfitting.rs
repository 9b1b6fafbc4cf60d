//! Detects overfitting from the last losses of a run.

use crate::train::checkpoint::Best;
use crate::train::evaluation::evaluate::Evaluation;

/// Relative rise of the validation loss above its best that exceeds noise.
const RISE: f64 = 0.01;
/// Ratio of validation loss to training loss above which a model has memorized its text.
const GAP: f64 = 1.5;
/// Smallest difference in nats, because a ratio of small losses is not significant.
const LEAST_GAP: f64 = 0.2;

/// Diagnosis and remedy, if the losses at the end of a run show overfitting. What has seen less than an epoch cannot
/// have memorized it.
pub(in crate::train) fn overfitting(
    epochs: f64,
    train_loss: Option<f64>,
    validation: Option<&Evaluation>,
    best: Option<Best>,
    step: usize,
) -> Option<String> {
    let (train, validation, best) = (train_loss?, validation?.loss, best?);
    if epochs < 1.0 {
        return None;
    }
    let has_risen = best.step < step && validation > best.loss * (1.0 + RISE) && train < validation;
    let is_apart = validation > GAP * train && validation > train + LEAST_GAP;
    let losses = format!("training loss {train:.4}, validation loss {validation:.4}");
    let less = "more text, a smaller model or model.dropout helps";
    match (has_risen, is_apart) {
        (true, _) => Some(format!(
            "this run overfits: {losses}, which was {:.4} at step {}; `generate` and `eval` take that checkpoint. \
             Train for about {} steps; {less}",
            best.loss, best.step, best.step
        )),
        (false, true) => Some(format!("this run overfits: {losses}; train for fewer steps; {less}")),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(train: f64, validation: f64, best: (usize, f64)) -> Option<String> {
        verdict_after(10.0, train, validation, best)
    }

    fn verdict_after(epochs: f64, train: f64, validation: f64, best: (usize, f64)) -> Option<String> {
        let evaluation = Evaluation {
            loss: validation,
            perplexity: validation.exp(),
            bits_per_byte: validation,
            lossless: true,
            unknown_share: 0.0,
            tokens: 100,
            context: 16,
            stride: 16,
            rewards: None,
        };
        overfitting(epochs, Some(train), Some(&evaluation), Some(Best { step: best.0, loss: best.1 }), 1500)
    }

    #[test]
    fn a_loss_that_has_risen_names_the_checkpoint_to_use() {
        let text = verdict(0.49, 1.59, (400, 1.42)).expect("it overfits");
        for part in ["training loss 0.4900", "validation loss 1.5900", "was 1.4200 at step 400", "about 400 steps"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_wide_gap_is_told_where_there_was_no_earlier_evaluation() {
        let text = verdict(0.49, 1.59, (1500, 1.59)).expect("it overfits");
        assert!(text.contains("train for fewer steps") && !text.contains("checkpoint"), "{text}");
    }

    #[test]
    fn a_run_that_still_learns_is_left_alone() {
        assert_eq!(verdict(0.366, 0.434, (1500, 0.434)), None, "a small gap");
        assert_eq!(verdict_after(0.5, 0.49, 1.59, (400, 1.42)), None, "half an epoch");
        assert_eq!(verdict(3.20, 3.21, (1000, 3.20)), None, "noise");
        assert_eq!(verdict(1.60, 1.59, (1500, 1.59)), None, "dropout makes training harder");
        assert_eq!(verdict(0.02, 0.05, (1500, 0.05)), None, "both are as good as zero");
    }
}
