//! Ranks that talk: alone, with nothing to say, and after one has ended.

use super::{Defined, HUGE, Refused, Row};
use rustyflow::comm::{Background, Communicator, Encoded, Hierarchy, ThreadComm, Wire, threads};
use rustyflow::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// The only rank of a job.
fn alone() -> ThreadComm {
    threads(1, Some(Duration::ZERO), &[]).unwrap().remove(0)
}

fn background() -> Result<Background> {
    Background::start(|| Ok(alone()), None)
}

/// One of two ranks, of which the other never comes.
fn forsaken() -> Result<Background> {
    Background::start(|| Ok(threads(2, Some(Duration::from_millis(5)), &[])?.remove(0)), Some(Duration::ZERO))
}

pub fn rows() -> Vec<Row> {
    vec![
        ("threads", Defined, |_| {
            assert!(threads(0, None, &[])?.is_empty());
            alone().all_reduce(Encoded::new(vec![], Wire::F16)).map(drop)
        }),
        ("threads", Refused, |_| threads(HUGE, None, &[]).map(drop)),
        ("Encoded::new", Defined, |_| {
            assert_eq!(Encoded::new(vec![], Wire::F32).values(), 0);
            Ok(())
        }),
        ("Encoded::of_bytes", Refused, |_| Encoded::of_bytes(vec![0; 7], Wire::F32).map(drop)),
        ("Encoded::of_bytes", Defined, |_| Encoded::of_bytes(vec![0; 7 * 2], Wire::F16).map(drop)),
        ("Hierarchy::new", Defined, |_| {
            let mut rank = Hierarchy::new(alone(), Some(Box::new(alone())))?;
            let all = rank.all_gather(Arc::new(vec![7]))?;
            assert!(all.len() == 1 && all[0][..] == [7]);
            rank.barrier()
        }),
        ("Hierarchy::new", Refused, |_| {
            Hierarchy::new(threads(2, Some(Duration::ZERO), &[])?.remove(1), Some(Box::new(alone()))).map(drop)
        }),
        ("Background::start", Refused, |_| {
            Background::start(|| Err::<ThreadComm, _>(Error::Invalid("by the maker".into())), None).map(drop)
        }),
        ("Background::begin_all_reduce", Defined, |_| {
            let values = Encoded::new(vec![f32::NAN, 1e9], Wire::F16);
            assert_eq!(background()?.begin_all_reduce(|| Ok(values)).wait()?.to_f32().len(), 2);
            Ok(())
        }),
        ("Background::begin_all_reduce", Refused, |_| {
            forsaken()?.begin_all_reduce(|| Ok(Encoded::new(vec![1.0], Wire::F32))).wait().map(drop)
        }),
        ("Background::broadcast", Defined, |_| background()?.broadcast(vec![]).map(drop)),
        ("Background::broadcast", Refused, |_| forsaken()?.broadcast(vec![1]).map(drop)),
        ("Background::all_gather", Defined, |_| background()?.all_gather(vec![]).map(drop)),
        ("Background::begin_all_gather", Refused, |_| {
            forsaken()?.begin_all_gather(|| Ok(Arc::new(vec![1]))).wait().map(drop)
        }),
        ("Background::begin_exchange", Defined, |_| background()?.begin_exchange(|_| Ok(())).wait()),
        ("Background::begin_exchange", Refused, |_| forsaken()?.begin_exchange(|_| Ok(())).wait()),
        ("Background::begin_exchange", Refused, |_| {
            background()?.begin_exchange(|_| Err::<(), _>(Error::Invalid("by the exchange".into()))).wait()
        }),
        ("Background::gather", Defined, |_| background()?.gather(vec![]).map(drop)),
        ("Background::send", Defined, |_| background()?.send(vec![])),
        ("Background::send", Refused, |_| forsaken()?.send(vec![1])),
        ("Background::abort", Refused, |_| {
            let rank = background()?;
            rank.abort("");
            rank.barrier()
        }),
    ]
}
