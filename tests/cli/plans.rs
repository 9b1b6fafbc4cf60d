//! What is said of a run before it begins, and what it comes to.

use crate::sandbox::{Run, Sandbox, TINY_RUN, has_gpu, json_lines};
use serde_json::Value;

#[test]
fn a_plan_names_memory_steps_and_time_and_writes_nothing() {
    let sandbox = Sandbox::new();
    for args in [&["plan", "tiny.toml", "--device", "cpu"][..], &["train", "tiny.toml", "--device", "cpu", "--dry-run"]]
    {
        let run = sandbox.run(args).succeeds();
        run.prints(&["weights ", "gradients ", "moments ", "activations ", "fits       yes", "6 steps", "s a step, "]);
    }
    assert!(!sandbox.exists("runs") && !sandbox.exists("training_log.txt"));
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn ranks_of_one_machine_share_its_memory() {
    let sandbox = Sandbox::new();
    let available = |further: &[&str]| {
        let args = [&["plan", "tiny.toml", "--json"], further].concat();
        let plan = sandbox.run_with(&args, &[("RUSTYFLOW_HOST_MEMORY", "400")]).succeeds().json();
        plan["host_available_bytes"].as_u64().unwrap() >> 20
    };
    assert_eq!(available(&["--device", "cpu"]), 400);
    assert_eq!(available(&["--device", "cpu,cpu"]), 200);
    assert_eq!(available(&["--device", "cpu", "--ranks", "4"]), 100);
    assert_eq!(available(&["--device", "cpu", "--ranks", "4", "--network", "1Gbps"]), 400);
}

#[cfg(feature = "mpi")]
#[test]
fn the_first_process_of_a_launcher_plans_for_all() {
    let sandbox = Sandbox::new();
    let process = |number| {
        let variables = [
            ("RUSTYFLOW_HOST_MEMORY", "400"),
            ("OMPI_COMM_WORLD_RANK", number),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", number),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ];
        sandbox.run_with(&["train", "tiny.toml", "--dry-run", "--json", "--device", "cpu"], &variables).succeeds()
    };
    assert_eq!(process("0").json()["host_available_bytes"].as_u64(), Some(100 << 20));
    assert_eq!(process("1").stdout, "");
}

/// Every op of a step, in both precisions where the GPU has them, with all that changes what is kept.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn the_planned_peak_of_a_gpu_is_that_of_the_run() {
    if !has_gpu() {
        return;
    }
    for more in [
        &["--batch-size", "1"][..],
        &["--n-embd", "64", "--batch-size", "32", "--set", "model.dropout=0.1"],
        &["--set", "train.grad_accum_steps=3", "--set", "model.tie_embeddings=false", "--set", "model.bias=false"],
        &["--precision", "mixed", "--set", "optimizer.kind=sgd"],
    ] {
        let sandbox = Sandbox::new();
        let of = |command| {
            let gpu = [command, "tiny.toml", "--device", "gpu", "--allow-software-gpu", "--json"];
            sandbox.run(&[&gpu[..], more].concat())
        };
        let plan = of("plan");
        if plan.stderr.contains("stores 16-bit floats") || plan.stdout.contains("stores 16-bit floats") {
            continue;
        }
        let planned = plan.succeeds().json()["memory"]["peak"].as_f64().unwrap();
        let lines = json_lines(&of("train").succeeds().stdout);
        let peak = lines.last().unwrap()["peak_memory_bytes"].as_f64().unwrap();
        // Promised are 5%; both count the same allocations.
        assert!((planned / peak - 1.0).abs() < 0.005, "{more:?}: planned {planned}, {peak} in the run");
    }
}

/// As on a GPU, and to the byte: the CPU's pool rounds up to cache lines alone.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn the_planned_peak_of_the_cpu_is_that_of_the_run() {
    for more in [
        &["--batch-size", "1"][..],
        &["--n-embd", "64", "--batch-size", "32", "--set", "model.dropout=0.1"],
        &["--set", "model.block_size=48", "--set", "train.grad_accum_steps=3", "--set", "model.tie_embeddings=false"],
        &["--n-layer", "3", "--set", "model.bias=false", "--set", "optimizer.kind=sgd"],
        &["--set", "model.kind=llama", "--set", "model.n_kv_head=1", "--set", "model.bias=false"],
        &[
            "--set",
            "model.kind=qwen3",
            "--set",
            "model.bias=false",
            "--batch-size",
            "7",
            "--set",
            "data.tokenizer=word",
        ],
    ] {
        let sandbox = Sandbox::new();
        let of = |command| {
            let cpu = [command, "tiny.toml", "--device", "cpu", "--threads", "2", "--json"];
            sandbox.run(&[&cpu[..], more].concat()).succeeds()
        };
        let planned = of("plan").json()["memory"].clone();
        let end = json_lines(&of("train").stdout).pop().unwrap();
        let (measured, kinds) = (&end["profile"]["memory"], &end["profile"]["memory"]["peak_by_kind"]);
        eprintln!("{more:?}: planned {}, {} in the run", planned["peak"], measured["peak_bytes"]);
        assert_eq!(planned["peak"], end["peak_memory_bytes"], "{more:?}: planned {planned}, in the run {measured}");
        for (plan, kind) in [
            ("weights", "parameters"),
            ("gradients", "gradients"),
            ("moments", "optimizer_state"),
            ("activations", "activations"),
            ("workspace", "scratch"),
            ("other", "other"),
        ] {
            assert_eq!(planned[plan], kinds[kind], "{more:?}: {kind}");
        }
        assert_eq!(measured["peak_bytes"], end["peak_memory_bytes"]);
    }
}

/// What each of several ranks takes that divide what the optimizer remembers, and in mixed precision the weights.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_plan_of_several_ranks_counts_what_they_divide() {
    let sandbox = Sandbox::new();
    let divided = ["--set", "train.shard_optimizer=true"];
    let plan = |command: &[&str]| sandbox.run(&[&["plan", "tiny.toml"], command].concat());
    let memory = |command: &[&str]| {
        let memory = plan(&[command, &["--json"]].concat()).succeeds().json()["memory"].clone();
        ["weights", "moments", "gradients"].map(|kind| memory[kind].as_f64().unwrap())
    };
    let close = |part: f64, whole: f64| (part / whole - 1.0).abs() < 0.15; // a GPU's buffers are of few sizes
    let [weights, moments, gradients] = memory(&["--device", "cpu"]);
    for of_two in [&["--device", "cpu", "--ranks", "2"][..], &["--device", "cpu,cpu"]] {
        let [same, half, of_all] = memory(&[of_two, &divided].concat());
        assert!(same == weights && close(2.0 * half, moments), "{half} of {moments}");
        // Of all parameters, and of activations of a part of the batch.
        assert!((weights..gradients).contains(&of_all), "{of_all} of {gradients}");
    }
    plan(&["--device", "cpu", "--ranks", "2"]).succeeds().prints(&["peak on each of 2 devices"]);
    if !has_gpu() {
        return;
    }
    let mixed = ["--device", "gpu", "--allow-software-gpu", "--precision", "mixed", "--n-embd", "64", "--n-layer", "4"];
    let run = plan(&mixed);
    if run.stderr.contains("stores 16-bit floats") {
        return;
    }
    let [weights, moments, gradients] = memory(&mixed);
    let [part, quarter, of_all] = memory(&[&mixed[..], &["--ranks", "4"], &divided].concat());
    // Embeddings, norms and biases are whole on each.
    assert!(close(4.0 * quarter, moments) && part < 0.5 * weights, "{part} of {weights}");
    assert!((0.85 * weights..gradients).contains(&of_all), "{of_all} of {gradients}");
    // Averages of the weights need all of them.
    let averages = ["--ranks", "4", "--set", "train.ema_decay=0.9"];
    assert_eq!(memory(&[&mixed[..], &averages, &divided].concat())[0], weights);
}

/// Of a run that prints events: memory by kind, in its profile for machines and in the one to be read.
fn reports_memory_by_kind(sandbox: &Sandbox, run: Run, device: &str) {
    let lines = json_lines(&run.succeeds().stdout);
    let end = lines.iter().find(|l| l["kind"] == "end").expect("an end");
    let folder = end["folder"].as_str().unwrap();
    let profile: Value = serde_json::from_str(&sandbox.read(format!("{folder}/profile.json"))).unwrap();
    let memory = &profile["memory"];
    let kinds = memory["peak_by_kind"].as_object().expect("an object").values();
    assert_eq!(kinds.map(|bytes| bytes.as_u64().unwrap()).sum::<u64>(), memory["peak_bytes"].as_u64().unwrap());
    assert!(memory["peak_bytes"].as_u64() > Some(0) && memory["peak_bytes"] == end["peak_memory_bytes"], "{memory}");
    let report = sandbox.read(format!("{folder}/profile.txt"));
    assert!(report.contains(&format!("  - {device} memory: ")) && report.contains("optimizer state "), "{report}");
}

#[test]
fn a_run_on_the_cpu_reports_its_memory_by_kind() {
    let sandbox = Sandbox::new();
    reports_memory_by_kind(&sandbox, sandbox.train(&["--json"]), "CPU");
    sandbox.train(&["--profile"]).succeeds().prints(&["  - CPU memory: "]);
}

#[test]
fn a_run_on_a_gpu_reports_its_memory_by_kind() {
    if has_gpu() {
        let sandbox = Sandbox::new();
        reports_memory_by_kind(&sandbox, sandbox.train_on_gpu(&["--json"]), "GPU");
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_run_that_does_not_fit_is_told_so_before_it_begins() {
    let sandbox = Sandbox::new();
    let run =
        sandbox.run(&["plan", "tiny.toml", "--device", "cpu", "--n-layer", "4000", "--n-embd", "512", "--n-head", "8"]);
    let run = run.ends_with(1).prints(&[
        "fits       no: training does not fit the memory: with one sequence of 16 tokens per pass, a model of",
        "use a smaller model.n_embd",
        "batch      4 x 16 tokens; none fits",
    ]);
    assert!(!run.stdout.contains("\ntime "), "{run:?}");
}

#[test]
fn a_finished_run_of_the_same_model_says_how_fast_the_next_one_is() {
    let sandbox = Sandbox::trained();
    let plan = |more: &[&str]| sandbox.run(&[&["plan", "tiny.toml", "--device", "cpu"][..], more].concat()).succeeds();
    plan(&[]).prints(&[&format!("from {TINY_RUN}, a finished run of the same model")]);
    plan(&["--n-embd", "32"]).prints(&["from the work of every kernel at the device's peaks"]);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_plan_tells_what_more_ranks_would_gain() {
    let sandbox = Sandbox::new();
    let plan =
        |more: &[&str]| sandbox.run(&[&["plan", "tiny.toml", "--device", "cpu", "--threads", "1"], more].concat());
    let cluster = plan(&["--ranks", "4", "--network", "100Mbps", "--json"]).succeeds().json()["cluster"].clone();
    assert_eq!(cluster["cluster"]["network_bytes_per_s"], 12.5e6, "{cluster}");
    let rows = cluster["rows"].as_array().unwrap();
    let numbers = |key: &str| rows.iter().map(|row| row[key].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((numbers("ranks"), numbers("sequences")), (vec![1, 2, 4], vec![4, 2, 1]));
    let waiting = |way: &str| rows[2][way]["communication"].as_f64().unwrap();
    assert!(waiting("together") > waiting("apart") && waiting("apart") > 0.0, "{cluster}");
    plan(&["--ranks", "4"]).succeeds().prints(&["ranks in one machine", "an all-reduce a step"]);
    plan(&["--ranks", "3"]).fails_with(&["4 sequences a step", "a multiple of 3"]);
    for (wrong, told) in
        [(&["--ranks", "4", "--network", "25"][..], "as in 25Gbps"), (&["--network", "25Gbps"], "--ranks")]
    {
        let run = plan(wrong);
        assert!(run.code == Some(2) && run.stderr.contains(told), "{run:#?}");
    }
}
