//! Flags that users of other tools type.

use crate::sandbox::Sandbox;

#[track_caller]
fn is_answered(command: &[&str], answer: &str) {
    let run = Sandbox::new().run(command);
    assert_eq!((run.code, run.stderr.as_str()), (Some(2), format!("error: {answer}\n").as_str()), "{command:?}");
    assert_eq!(run.stdout, "");
}

#[test]
fn the_flag_of_a_key_in_another_tool_is_answered_with_the_key() {
    let lr = "--lr: unknown flag, use --learning-rate 1e-3 or --set train.learning_rate=1e-3";
    is_answered(&["train", "--lr", "1e-3"], lr);
    is_answered(&["train", "--lr=1e-3"], lr);
    is_answered(&["-v", "plan", "tiny.toml", "--lr", "1e-3", "--json"], lr);
    is_answered(
        &["train", "--num_train_epochs", "3"],
        "--num_train_epochs: unknown flag, use --epochs 3 or --set train.epochs=3",
    );
    is_answered(&["train", "--bs", "8"], "--bs: unknown flag, use --batch-size 8 or --set train.batch_size=8");
    is_answered(&["train", "--output-dir", "my runs"], "--output-dir: unknown flag, use --set run.dir='my runs'");
    // A key that has no flag, and what it takes where nothing was given.
    is_answered(
        &["train", "--weight-decay", "0.1"],
        "--weight-decay: unknown flag, use --set optimizer.weight_decay=0.1",
    );
    is_answered(&["train", "--weight-decay"], "--weight-decay: unknown flag, use --set optimizer.weight_decay=<VALUE>");
    is_answered(
        &["train", "--gradient-checkpointing"],
        "--gradient-checkpointing: unknown flag, use --set train.recompute=<none|attention|block|auto>",
    );
    is_answered(&["train", "--tensorboard"], "--tensorboard: unknown flag, use --set log.tensorboard=true");
    // A command without --set.
    is_answered(&["generate", "--temp", "0.5"], "--temp: unknown flag, use --temperature 0.5");
    is_answered(&["generate", "--n-predict", "9"], "--n-predict: unknown flag, use --max-tokens 9");
}

#[test]
fn the_flag_of_another_tool_is_answered_with_the_flag_here() {
    is_answered(&["train", "--model", "runs/a"], "--model: unknown flag, use --init runs/a");
    let underscores = "--model_name_or_path: unknown flag, use --init runs/a";
    is_answered(&["train", "--model_name_or_path", "runs/a"], underscores);
    let of_eval = "--model_name_or_path: unknown flag, use --model runs/a";
    is_answered(&["eval", "--model_name_or_path=runs/a"], of_eval);
    is_answered(&["train", "--fp16"], "--fp16: unknown flag, use --precision mixed");
    is_answered(&["train", "--bf16", "true"], "--bf16: unknown flag, use --precision mixed");
    is_answered(&["train", "--cuda"], "--cuda: unknown flag, use --device gpu");
    is_answered(&["eval", "--gpu"], "--gpu: unknown flag, use --device gpu");
    is_answered(&["train", "--resume-from", "runs/a"], "--resume-from: unknown flag, use --resume runs/a");
    is_answered(&["generate", "--fp16"], "--fp16: unknown flag, use --dtype f16");
}

#[test]
fn a_flag_that_nothing_is_known_of_is_answered_as_ever() {
    for command in [&["train", "--no-such-thing"][..], &["devices", "--lr", "1"]] {
        let run = Sandbox::new().run(command);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains("unexpected argument") && run.stderr.contains("Usage: rustyflow"), "{run:?}");
    }
    let help = Sandbox::new().run(&["train", "--help"]).succeeds();
    assert!(help.stderr.is_empty() && help.stdout.contains("Usage: rustyflow train"), "{help:?}");
    let version = Sandbox::new().run(&["--version"]).succeeds();
    assert!(version.stdout.starts_with("rustyflow "), "{version:?}");
}
