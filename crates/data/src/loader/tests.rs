//! Batches of the loader: order, positions and refusals.

use super::*;

/// Tokens 100, 101, ...: each value says where it stands.
fn tokens(count: u32) -> Tokens {
    (100..100 + count).collect::<Vec<u32>>().into()
}

fn loader(count: u32, batch_size: usize, block_size: usize, seed: u64) -> Loader {
    Loader::new(tokens(count), Order::Shuffled, batch_size, block_size, seed, Position::default()).unwrap()
}

/// The (input, target) pairs of `windows` windows, without the ignored ones.
fn pairs(loader: &mut Loader, windows: usize) -> Vec<(u32, u32)> {
    (0..windows)
        .flat_map(|_| {
            let batch = loader.next_batch();
            batch.ids.into_iter().zip(batch.targets)
        })
        .filter(|(_, target)| *target != IGNORE_INDEX)
        .collect()
}

#[test]
fn every_pair_comes_exactly_once_per_epoch() {
    for count in [9, 16, 17, 100] {
        let mut loader = loader(count, 1, 8, 5);
        for epoch in 0..6 {
            let windows = loader.windows_in_epoch(epoch);
            let mut seen = pairs(&mut loader, windows);
            seen.sort_unstable();
            let expected: Vec<(u32, u32)> = (100..100 + count - 1).map(|t| (t, t + 1)).collect();
            assert_eq!(seen, expected, "{count} tokens, epoch {epoch}");
        }
    }
}

#[test]
fn short_windows_are_padded_with_ignored_targets() {
    let mut loader = loader(12, 1, 8, 1);
    let mut padded = 0;
    for _ in 0..20 {
        let batch = loader.next_batch();
        let length = batch.targets.iter().position(|&t| t == IGNORE_INDEX).unwrap_or(8);
        padded += 8 - length;
        assert!(batch.ids[..length].iter().all(|&id| id >= 100));
        assert!(batch.ids[length..].iter().all(|&id| id == 0));
        assert!(batch.targets[length..].iter().all(|&t| t == IGNORE_INDEX));
    }
    assert!(padded > 0, "11 inputs in windows of 8 leave something to pad");
}

#[test]
fn continued_rows_begin_anew_with_each_epoch_and_resume_anywhere() {
    let new = |start| Loader::new(tokens(50), Order::Continued, 4, 5, 1, start).unwrap();
    let mut loader = new(Position::default());
    assert_eq!((loader.windows_in_epoch(0), loader.batches_per_epoch()), (12, 3.0));
    let all: Vec<Batch> = (0..7).map(|_| loader.next_batch()).collect();
    assert_eq!(all.iter().map(|batch| batch.begins).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0].map(|i| i == 0));
    for (i, batch) in all.iter().enumerate() {
        assert_eq!(batch.ids, all[i % 3].ids, "every epoch is cut alike");
        if !batch.begins {
            let [last, first] = [&all[i - 1].targets[4..], &batch.ids[..]].map(|row| row.iter().step_by(5));
            // The last piece ends early.
            assert!(last.zip(first).take(3).all(|(target, id)| target == id));
        }
    }
    for done in 1..6 {
        assert_eq!(new(all[done].position).next_batch(), all[done + 1]);
    }
}

#[test]
fn windows_start_elsewhere_in_each_epoch() {
    let loader = loader(1000, 1, 64, 3);
    let mut offsets: Vec<usize> = (0..8).map(|e| loader.plan.offset(&mut loader.plan.random(e))).collect();
    offsets.sort_unstable();
    offsets.dedup();
    assert!(offsets.len() >= 6, "{offsets:?}");
}

#[test]
fn windows_come_in_random_order() {
    let mut loader = loader(1000, 4, 8, 3);
    let starts: Vec<u32> = (0..20).flat_map(|_| loader.next_batch().ids.into_iter().step_by(8)).collect();
    let rising = starts.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!((20..60).contains(&rising), "{rising} of 79 steps go up");
}

#[test]
fn the_same_seed_gives_the_same_batches() {
    let (mut left, mut right) = (loader(500, 3, 8, 7), loader(500, 3, 8, 7));
    for _ in 0..50 {
        assert_eq!(left.next_batch(), right.next_batch());
    }
}

#[test]
fn two_seeds_give_different_batches() {
    assert_ne!(loader(500, 3, 8, 7).next_batch(), loader(500, 3, 8, 8).next_batch());
}

#[test]
fn batches_run_across_the_end_of_an_epoch() {
    let mut loader = loader(30, 16, 8, 7);
    let batch = loader.next_batch();
    assert!(batch.position.epoch >= 2, "16 windows of 5 or fewer per epoch: {:?}", batch.position);
    assert_eq!(batch.ids.len(), 16 * 8);
}

#[test]
fn starting_at_any_position_gives_what_the_uninterrupted_loader_gives() {
    let mut uninterrupted = loader(60, 3, 8, 11);
    let mut all = vec![];
    for _ in 0..20 {
        all.push(uninterrupted.next_batch());
    }
    for done in 0..all.len() - 1 {
        let mut resumed = Loader::new(tokens(60), Order::Shuffled, 3, 8, 11, all[done].position).unwrap();
        assert_eq!(resumed.next_batch(), all[done + 1], "after batch {done}");
    }
}

#[test]
fn average_batches_per_epoch_is_that_of_the_epochs() {
    let loader = loader(1003, 4, 16, 2);
    let windows: usize = (0..4000).map(|epoch| loader.windows_in_epoch(epoch)).sum();
    let average = windows as f64 / 4000.0 / 4.0;
    // The count varies by one window, so the mean of 4000 is known to about 0.5 / sqrt(4000) windows.
    assert!((average - loader.batches_per_epoch()).abs() < 0.01, "{average} {}", loader.batches_per_epoch());
}

#[test]
fn epochs_at_counts_fractions() {
    let loader = loader(1000, 1, 8, 2);
    let half = loader.windows_in_epoch(3) as u64 / 2;
    assert!((loader.epochs_at(Position { epoch: 3, window: half }) - 3.5).abs() < 0.01);
}

#[test]
fn fewer_than_two_tokens_are_refused() {
    for count in [0, 1] {
        let error = Loader::new(tokens(count), Order::Shuffled, 1, 8, 0, Position::default()).err().unwrap();
        assert!(error.to_string().contains("at least 2"), "{error}");
    }
}

#[test]
fn a_text_shorter_than_the_context_is_refused_with_both_lengths() {
    let error = Loader::new(tokens(8), Order::Shuffled, 1, 8, 0, Position::default()).err().unwrap().to_string();
    assert!(error.contains("8 tokens") && error.contains("at least 9") && error.contains("at most 7"), "{error}");
    assert!(Loader::new(tokens(9), Order::Shuffled, 1, 8, 0, Position::default()).is_ok());
}

#[test]
fn a_position_outside_its_epoch_is_refused() {
    let start = Position { epoch: 0, window: 1000 };
    assert!(
        Loader::new(tokens(20), Order::Shuffled, 1, 8, 0, start).err().unwrap().to_string().contains("window 1000")
    );
}

#[test]
fn sizes_of_zero_are_refused() {
    assert!(Loader::new(tokens(20), Order::Shuffled, 0, 8, 0, Position::default()).is_err());
    assert!(Loader::new(tokens(20), Order::Shuffled, 1, 0, 0, Position::default()).is_err());
}
