//! What a run leaves in the cache folder for the next one.

use crate::sandbox::{Sandbox, has_gpu};

/// The files that keep pipelines.
fn pipelines(sandbox: &Sandbox) -> Vec<String> {
    sandbox.names_in("cache/pipelines").into_iter().map(|name| format!("cache/pipelines/{name}")).collect()
}

fn has_pipeline_caches(sandbox: &Sandbox) -> bool {
    let devices = sandbox.run(&["devices", "--json"]).succeeds().json();
    let features = devices["adapters"][0]["features"].as_array().cloned().unwrap_or_default();
    let has = has_gpu() && features.iter().any(|feature| feature == "pipeline-cache");
    if !has {
        eprintln!("SKIPPED, no pipeline caches");
    }
    has
}

#[test]
fn compiled_shaders_are_kept_and_a_damaged_file_is_replaced() {
    let sandbox = Sandbox::new();
    if !has_pipeline_caches(&sandbox) {
        return;
    }
    let run = sandbox.train_on_gpu(&[]).succeeds();
    assert!(!run.stderr.contains("WARN"), "{run:?}");
    let [file] = &pipelines(&sandbox)[..] else { panic!("{:?}", pipelines(&sandbox)) };
    let whole = std::fs::read(sandbox.path(file)).unwrap();
    assert!(whole.starts_with(b"rustyflow "));

    sandbox.write(file, &whole[..whole.len() / 2]);
    let run = sandbox.train_on_gpu(&[]).succeeds();
    assert!(run.stderr.contains(file) && run.stderr.contains("damaged"), "{run:?}");
    let run = sandbox.train_on_gpu(&[]).succeeds();
    assert!(!run.stderr.contains("WARN"), "{run:?}");
    assert_eq!(pipelines(&sandbox).len(), 1);
}

#[test]
fn a_cache_folder_that_cannot_be_written_is_one_warning() {
    let sandbox = Sandbox::new();
    if !has_pipeline_caches(&sandbox) {
        return;
    }
    sandbox.write("cache", "a file in the way");
    let run = sandbox.train_on_gpu(&[]).succeeds();
    let warnings: Vec<&str> = run.stderr.lines().filter(|line| line.contains("WARN")).collect();
    assert!(matches!(warnings[..], [line] if line.contains("RUSTYFLOW_CACHE_DIR")), "{run:?}");
}

#[test]
fn training_on_the_cpu_keeps_nothing() {
    let sandbox = Sandbox::new();
    sandbox.train(&[]).succeeds();
    assert!(!sandbox.exists("cache"));
}
