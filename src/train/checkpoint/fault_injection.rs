//! Fails disk requests one by one and damages files: the previous checkpoint must always exist and be used.

use super::files::{Faults, Files};
use super::find::newest_good;
use super::layout::{MANIFEST, METRICS, TOKENIZER, checkpoints};
use super::snapshot::{Snapshot, recover};
use super::state::{DataHash, TrainerState};
use super::store::{Checkpoints, Request};
use crate::models::{ModelWeights, Weights, build, testing};
use crate::optim::{Kind, Moments, Optimizer, ParameterArena};
use crate::tensor::Bytes;
use crate::{DType, Device, Error};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

fn snapshot(step: usize) -> Snapshot {
    let config = testing::small(5, 4, 1, 4);
    let mut model = build(&config, step as u64).unwrap();
    let parameters = ParameterArena::new(&mut *model, &Device::Cpu, DType::F32).unwrap();
    let kind = Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    let optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0).unwrap();
    let moments = optimizer.moments().into_iter().map(|(name, m)| (name, Bytes::owned(m.to_bytes().unwrap())));
    let data = DataHash { text_sha256: String::new(), tokens_sha256: String::new() };
    Snapshot {
        carried: None,
        weights: Weights::Model(ModelWeights::new(
            config,
            &parameters,
            vec![Bytes::owned(parameters.values().to_bytes().unwrap())],
        )),
        moments: Some(Moments::new(&parameters, moments.collect())),
        pretrained: vec![(TOKENIZER, "{}".into())],
        state: TrainerState { step, ..TrainerState::new(Device::Cpu.name(), data, 10) },
        config: String::new(),
    }
}

fn save(run: &Path, step: usize) -> crate::Result<PathBuf> {
    save_with(run, step, Files::default())
}

fn save_with(run: &Path, step: usize, files: Files) -> crate::Result<PathBuf> {
    let metrics = run.join(METRICS);
    let appended = vec![(metrics.clone(), File::open(metrics).unwrap())];
    let request = Request { snapshot: snapshot(step), appended, best: step == 1, keep_last: 2 };
    Checkpoints::of(run, files).save(request)
}

/// A run with checkpoints of these steps.
fn run(steps: &[usize]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(METRICS), "").unwrap();
    steps.iter().for_each(|step| drop(save(dir.path(), *step).unwrap()));
    dir
}

/// The step that a resumed run would continue from, and its notes.
fn resumes_from(run: &Path) -> (usize, String) {
    recover(&Files::default(), run).unwrap();
    let mut notes = Vec::new();
    let checkpoint = newest_good(run, &mut notes).unwrap().expect("there is a checkpoint");
    (checkpoint.state.step, notes.join("\n"))
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn whatever_request_a_full_disk_refuses_there_is_a_good_checkpoint_and_an_error_that_says_so() {
    // Of a new checkpoint, of one that takes the place of another of its step, and of one after which another goes.
    for (before, step, removes) in [(&[1, 2][..], 3, false), (&[1, 3][..], 3, false), (&[1, 2, 3][..], 4, true)] {
        let (mut requests, mut not_removed) = (0, 0);
        loop {
            let dir = run(before);
            let run = dir.path();
            let files = Files { faults: Faults::from_request(requests + 1) };
            let saved = save_with(run, step, files.clone());
            let reached = files.faults.has_failed();
            let Err(error) = saved else {
                assert!(!reached, "request {requests} failed and nobody said so");
                break;
            };
            let Error::Checkpoint { message, .. } = &error else { panic!("{error}") };
            let is_saved =
                format!("the checkpoint of step {step} is saved, but an old one is still there: cannot remove ");
            let is_saved = message.contains(&is_saved);
            not_removed += is_saved as usize;
            let is_not = message.contains(&format!("the checkpoint of step {step} could not be saved: cannot "));
            assert!(is_saved != is_not && message.contains("--resume"), "{error}");
            let (resumed, notes) = resumes_from(run);
            let expected = resumed == step || (is_not && Some(&resumed) == before.last());
            assert!(expected, "after request {requests}: {resumed}");
            assert_eq!(notes, "", "after request {requests}: what is there is whole");
            assert!(
                save(run, step).is_ok() && resumes_from(run).0 == step,
                "with room again, after request {requests}"
            );
            requests += 1;
        }
        // A folder, 7 files of 3 requests each, the folder's names, a rename, the pointer's 5, and what is old.
        assert!(requests >= 30, "{requests} requests of step {step} after {before:?}");
        assert_eq!(not_removed, removes as usize, "of step {step} after {before:?}");
    }
}

#[test]
fn a_file_that_is_truncated_or_has_a_flipped_byte_is_named_and_the_checkpoint_before_used() {
    let dir = run(&[1, 2]);
    let newest = checkpoints(dir.path()).pop().unwrap().1;
    let mut names: Vec<_> = fs::read_dir(&newest).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 7);
    for name in names.iter().filter(|name| *name != "config.toml") {
        let path = newest.join(name);
        let whole = fs::read(&path).unwrap();
        let flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        };
        let last = whole.len() - 1;
        for damaged in [flipped(0), flipped(whole.len() / 2), flipped(last), whole[..last].to_vec(), Vec::new()] {
            fs::write(&path, damaged).unwrap();
            let (step, notes) = resumes_from(dir.path());
            assert_eq!(step, 1, "{name:?}");
            let named = notes.contains(&*name.to_string_lossy()) && notes.contains("step-000002");
            assert!(named && notes.contains("resuming from the previous checkpoint, of step 1"), "{name:?}: {notes}");
        }
        fs::remove_file(&path).unwrap();
        let expected = if name == MANIFEST { MANIFEST } else { "cannot read" };
        assert!(resumes_from(dir.path()).1.contains(expected), "{name:?}");
        fs::write(&path, whole).unwrap();
        assert_eq!(resumes_from(dir.path()), (2, String::new()));
    }
}
