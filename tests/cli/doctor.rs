//! Whether this machine can be trusted.

use crate::sandbox::Sandbox;

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn doctor_ends_in_one_line_that_says_whether_to_train_here() {
    let sandbox = Sandbox::new();
    let run = sandbox.run(&["doctor", "--device", "cpu"]).succeeds();
    run.prints(&["rustyflow ", "cases are consistent", "FLOP/s in f32", "disk     runs in runs: ", " free\n"])
        .stdout
        .lines()
        .last()
        .filter(|line| line.starts_with("self-test passed on cpu ("))
        .expect("a verdict");
    assert!(!sandbox.exists("runs"));
}

#[test]
fn doctor_tells_machines_the_same() {
    let told = Sandbox::new().run(&["doctor", "--device", "cpu", "--json"]).succeeds().json();
    assert_eq!((&told["trusted"], &told["problems"]), (&true.into(), &serde_json::json!([])), "{told}");
    assert!(told["kernels"]["cases"].as_u64() > Some(100) && told["device"].as_str().is_some(), "{told}");
    assert_eq!((&told["disks"][0]["what"], &told["disks"][0]["path"]), (&"runs in".into(), &"runs".into()), "{told}");
}
