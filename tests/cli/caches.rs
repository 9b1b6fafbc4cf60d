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
#[ignore = "slow: scripts/test.sh --full"]
fn compiled_shaders_are_kept_and_a_damaged_file_is_replaced() {
    let sandbox = Sandbox::with_own_cache();
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
    let sandbox = Sandbox::with_own_cache();
    if !has_pipeline_caches(&sandbox) {
        return;
    }
    sandbox.write("cache", "a file in the way");
    let run = sandbox.train_on_gpu(&[]).succeeds();
    let warnings: Vec<&str> = run.stderr.lines().filter(|line| line.contains("WARN")).collect();
    assert!(matches!(warnings[..], [line] if line.contains("RUSTYFLOW_CACHE_DIR")), "{run:?}");
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn without_a_named_folder_the_users_folder_of_caches_is_taken() {
    let sandbox = Sandbox::new();
    if !has_pipeline_caches(&sandbox) {
        return;
    }
    let args = ["train", "--config", "tiny.toml", "--device", "gpu", "--allow-software-gpu"];
    let mut command = sandbox.command(&args);
    command.env_remove("RUSTYFLOW_CACHE_DIR").env("XDG_CACHE_HOME", sandbox.path("users"));
    assert!(command.status().unwrap().success());
    assert_eq!(sandbox.names_in("users/rustyflow/pipelines").len(), 1);
}

#[test]
fn training_on_the_cpu_keeps_tokens_alone() {
    let sandbox = Sandbox::with_own_cache();
    sandbox.train(&[]).succeeds();
    assert_eq!(sandbox.names_in("cache"), ["texts", "tokens"]);
}

#[test]
fn a_hardware_adapter_is_measured_once_and_a_software_adapter_never() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::with_own_cache();
    let rates = || sandbox.run(&["devices", "--json"]).succeeds().json()["adapters"][0]["matmul_gflops"].clone();
    assert!(rates().is_null());
    let devices = sandbox.run(&["devices"]).succeeds().stdout;
    let first = sandbox.train_on_gpu(&[]).succeeds();
    let second = sandbox.train_on_gpu(&[]).succeeds();
    assert!(!second.stderr.contains("autotuning"), "{second:?}");
    if devices.contains("not autotuned yet") {
        assert!(first.stderr.contains("autotuning the GEMMs"), "{first:?}");
        assert!(rates().as_object().is_some_and(|tiles| tiles.values().all(|tile| tile["nn"].as_u64() > Some(0))));
        sandbox.run(&["devices"]).succeeds().prints(&["TFLOP/s"]);
    } else {
        assert!(devices.contains("software") && !first.stderr.contains("autotuning"), "{first:?}");
        assert!(rates().is_null() && !sandbox.exists("cache/kernels"));
    }
}

#[test]
fn a_damaged_file_of_rates_is_named_and_not_used() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::with_own_cache();
    let devices = sandbox.run(&["devices", "--json"]).succeeds().json();
    let text = |name: &str| devices["adapters"][0][name].as_str().unwrap().to_string();
    let adapter = text("name").replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let file = format!("cache/kernels/{}-{adapter}.json", text("backend"));
    sandbox.write(&file, "{ \"source\": ");
    let run = sandbox.run(&["devices", "--json"]).succeeds();
    assert!(run.stderr.contains(&file) && run.stderr.contains("`rustyflow bench tune`"), "{run:?}");
    assert!(run.json()["adapters"][0]["matmul_gflops"].is_null());
    let run = sandbox.train_on_gpu(&[]).succeeds();
    assert!(run.stderr.contains(&file), "{run:?}");
}
