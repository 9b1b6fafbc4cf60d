//! Gradients that devices exchange without the host (`train.comm = "nccl"`), here through the communicator: no test has
//! cards.

use super::{files, largest_difference, largest_loss_difference, teams, trained};
use crate::Device;

const STEPS: &str = "train.max_steps=12";

/// Windows of tests hold a part of the gradients, so that each step has several exchanges.
#[test]
fn sums_by_exchanges_are_those_through_the_host_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    for (i, team) in teams().iter().enumerate() {
        let mixed = team.iter().all(|device| device.is_gpu() && device.has_f16());
        let mixed: &[&str] = if mixed { &["train.precision=mixed", "train.shard_optimizer=true"] } else { &[] };
        let cases = [&["train.grad_clip=0.5"][..], &["train.shard_optimizer=true"], mixed];
        for (j, further) in cases.into_iter().enumerate() {
            let [host, card] = ["host", "nccl"].map(|comm| {
                let comm_set = format!("train.comm={comm}");
                let settings = [&[STEPS, &comm_set], further].concat();
                let run = trained(dir.path(), &format!("{i}-{j}-{comm}"), team, &settings);
                assert_eq!(run.notes.iter().any(|note| note.contains("by the exchange of tests")), comm == "nccl");
                run
            });
            if team.iter().all(|device| device.name() == team[0].name()) {
                assert_eq!(host.losses, card.losses, "{team:?} {further:?}");
                assert!(files(&host) == files(&card), "{team:?} {further:?}");
            } else {
                assert!(largest_loss_difference(&host, &card) < 1e-5, "{team:?} {further:?}");
            }
        }
    }
}

#[test]
fn gradients_exchanged_as_f16_are_summed_in_f32_and_give_the_same_bits_twice() {
    let dir = tempfile::tempdir().unwrap();
    let settings = ["optimizer.kind=sgd", STEPS, "train.comm=nccl"];
    for (i, team) in teams().iter().enumerate().filter(|(_, team)| team.iter().all(Device::has_f16)) {
        let halves = [&settings[..], &["train.reduce_dtype=f16"]].concat();
        let [a, b] = ["a", "b"].map(|name| trained(dir.path(), &format!("{i}{name}"), team, &halves));
        assert_eq!(a.losses, b.losses, "{team:?}");
        assert!(files(&a) == files(&b), "{team:?}");
        let whole = trained(dir.path(), &format!("{i}whole"), team, &settings);
        let difference = largest_difference(&a, &whole);
        assert!(difference > 0.0 && difference < 1e-4, "{team:?}: {difference}");
    }
}
