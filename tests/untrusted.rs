//! Files that others may have written, damaged in a few thousand ways, always the same: each is taken or refused,
//! without a panic. The fuzz targets in `fuzz/` do the same for as long as one likes.

#[path = "../fuzz/entries.rs"]
mod entries;

use rustyflow::ops::random::splitmix64;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Damaged files per seed.
const MUTATIONS: usize = 1500;

/// What parsers stumble over.
const PIECES: [&[u8]; 16] = [
    b"\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"=",
    b"-1",
    b"1e999",
    b"18446744073709551616",
    b"null",
    b"../",
    b"\0",
    b"\xff",
    b"\xe2\x82",
];

fn damage(seed: &[u8], random: &mut u64) -> Vec<u8> {
    let mut below = |bound: usize| (splitmix64(random) % bound.max(1) as u64) as usize;
    let mut bytes = seed.to_vec();
    for _ in 0..1 + below(4) {
        let at = below(bytes.len() + 1);
        let until = (at + below(9)).min(bytes.len());
        match below(5) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << below(8),
            2 => drop(bytes.splice(at..until, [])),
            3 => {
                let other = below(bytes.len() + 1);
                let copy = bytes[other..(other + below(40)).min(bytes.len())].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            _ => drop(bytes.splice(at..until, PIECES[below(PIECES.len())].iter().copied())),
        }
    }
    bytes
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn damaged_files_are_taken_or_refused_without_a_panic() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let scratch = tempfile::tempdir().unwrap();
    for (name, entry) in entries::ENTRIES {
        let mut paths: Vec<_> = fs::read_dir(seeds.join(name)).unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "no seeds for {name}");
        for path in paths {
            let seed = fs::read(&path).unwrap();
            entry(scratch.path(), &seed);
            let mut random = 7;
            for _ in 0..MUTATIONS {
                let bytes = damage(&seed, &mut random);
                if catch_unwind(AssertUnwindSafe(|| entry(scratch.path(), &bytes))).is_err() {
                    let kept = std::env::temp_dir().join(format!("rustyflow-panic-{name}"));
                    fs::write(&kept, &bytes).unwrap();
                    panic!("{name} panicked on {}, from {}", kept.display(), path.display());
                }
            }
        }
    }
}
