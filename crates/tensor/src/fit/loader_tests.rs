use super::*;
use crate::fit::Arrays;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Samples (2) that hold twice their index and one more, and a class ().
fn numbers(count: usize) -> Arrays {
    let values: Vec<f32> = (0..2 * count).map(|i| i as f32).collect();
    let classes: Vec<u32> = (0..count as u32).collect();
    Arrays::new(vec![Array::f32(&values, [count, 2]).unwrap(), Array::u32(&classes, [count]).unwrap()]).unwrap()
}

fn loader(count: usize, options: LoaderOptions) -> DataLoader {
    DataLoader::new(numbers(count), options, &Device::Cpu).unwrap()
}

/// Where a batch is from, and all that is in it.
type Contents = (u64, usize, Vec<usize>, Vec<f32>, Vec<u32>);

fn contents(batches: Batches) -> Vec<Contents> {
    let contents = |batch: Result<Batch>| {
        let batch = batch.unwrap();
        let (epoch, number, indices) = (batch.epoch, batch.number, batch.indices.clone());
        let [x, y] = batch.take().unwrap();
        assert_eq!((&x.shape()[..], &y.shape()[..]), (&[indices.len(), 2][..], &[indices.len()][..]));
        (epoch, number, indices, x.to_f32().unwrap(), y.to_u32().unwrap())
    };
    batches.map(contents).collect()
}

#[test]
fn an_epoch_has_every_sample_once_and_its_values() {
    for options in [LoaderOptions::of(4), LoaderOptions::of(4).shuffled(7)] {
        let batches = contents(loader(10, options).epoch(3).unwrap());
        let sizes: Vec<usize> = batches.iter().map(|(_, _, indices, ..)| indices.len()).collect();
        assert_eq!(sizes, [4, 4, 2]);
        for (epoch, _, indices, x, y) in &batches {
            assert_eq!(*epoch, 3);
            for (row, &index) in indices.iter().enumerate() {
                assert_eq!((x[2 * row], x[2 * row + 1]), (2.0 * index as f32, 2.0 * index as f32 + 1.0));
                assert_eq!(y[row], index as u32);
            }
        }
        let mut all: Vec<usize> = batches.into_iter().flat_map(|(_, _, indices, ..)| indices).collect();
        assert_eq!(all == (0..10).collect::<Vec<_>>(), options.shuffle.is_none());
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
    }
}

#[test]
fn the_order_does_not_depend_on_the_number_of_threads() {
    for device in Device::for_tests() {
        let of = |workers| {
            let options = LoaderOptions::of(3).shuffled(5).workers(workers);
            contents(DataLoader::new(numbers(20), options, &device).unwrap().epochs(0..3).unwrap())
        };
        let alone = of(0);
        assert_eq!(alone.len(), 3 * 7, "{device}");
        for workers in [1, 2, 3, 8, 30] {
            assert_eq!(of(workers), alone, "{device}: {workers} threads");
        }
    }
}

#[test]
fn seeds_and_epochs_have_orders_of_their_own() {
    let order = |seed, epoch| contents(loader(50, LoaderOptions::of(50).shuffled(seed)).epoch(epoch).unwrap());
    let orders = [order(1, 0), order(1, 1), order(2, 0), order(2, 1)].map(|batches| batches[0].2.clone());
    for (i, order) in orders.iter().enumerate() {
        assert!(!orders[..i].contains(order), "{i}");
    }
    assert_eq!(orders[0], order(1, 0)[0].2);
}

#[test]
fn a_run_goes_on_where_it_was() {
    for workers in [0, 1, 3] {
        let loader = loader(10, LoaderOptions::of(3).shuffled(1).workers(workers));
        let all = contents(loader.epochs(0..4).unwrap());
        for done in [0, 1, 5, 15, 16] {
            assert_eq!(contents(loader.epochs_from(0..4, done as u64).unwrap()), all[done..], "{workers} threads");
        }
    }
}

#[test]
fn smaller_batches_are_left_out_if_asked_for() {
    let loader = loader(10, LoaderOptions::of(4).drop_last());
    assert_eq!(loader.batches_per_epoch(), 2);
    let sizes = contents(loader.epochs(0..2).unwrap()).iter().map(|batch| batch.2.len()).collect::<Vec<_>>();
    assert_eq!(sizes, [4; 4]);
}

type Sample = fn() -> Result<Vec<Array>>;

/// Samples of which one cannot be read, in one way or another, and each of which takes a while.
struct Broken {
    at: usize,
    how: Sample,
    asked: Arc<AtomicUsize>,
}

impl Dataset for Broken {
    fn len(&self) -> usize {
        1000
    }

    fn get(&self, index: usize) -> Result<Vec<Array>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1));
        if index == self.at { (self.how)() } else { Ok(vec![Array::f32(&[0.0; 2], [2])?]) }
    }
}

#[test]
fn what_is_wrong_with_a_sample_is_said_with_its_index() {
    let ways: [(Sample, &[&str]); 5] = [
        (|| Err(Error::Invalid("no such file".into())), &["no such file"]),
        (|| panic!("out of {}", "luck"), &["panicked", "out of luck"]),
        (|| Ok(vec![Array::f32(&[0.0; 3], [3])?]), &["(3)", "sample 18 is", "(2)"]),
        (|| Ok(vec![Array::u32(&[0; 2], [2])?]), &["u32"]),
        (|| Ok(vec![]), &["no array"]),
    ];
    for workers in [0, 1, 3] {
        for (how, words) in ways {
            let dataset = Broken { at: 19, how, asked: Arc::default() };
            let loader = DataLoader::new(dataset, LoaderOptions::of(3).workers(workers), &Device::Cpu).unwrap();
            let mut batches = loader.epoch(0).unwrap();
            assert!((0..6).all(|number| batches.next().unwrap().unwrap().number == number));
            let error = batches.next().unwrap().err().unwrap();
            let message = error.to_string();
            assert!(matches!(error, Error::Sample { index: 19, .. }), "{message}");
            assert!(message.contains("sample 19"), "{message}");
            assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
            assert!(batches.next().is_none(), "nothing comes after an error");
        }
    }
}

/// Threads that wait for room in their queues, and ones that are at work, end.
#[test]
fn batches_that_are_dropped_end_their_threads() {
    for (workers, waits) in [(1, 0), (4, 0), (4, 60)] {
        let asked = Arc::new(AtomicUsize::new(0));
        let dataset = Broken { at: usize::MAX, how: || unreachable!(), asked: asked.clone() };
        let loader = DataLoader::new(dataset, LoaderOptions::of(2).workers(workers), &Device::Cpu).unwrap();
        let started = Instant::now();
        let mut batches = loader.epochs(0..u64::MAX).unwrap();
        batches.next().unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(waits));
        drop(batches);
        // A batch takes 2 ms, on a machine that has something else to do perhaps a hundred times that.
        assert!(started.elapsed() < Duration::from_secs(2), "{workers} threads");
        let after = asked.load(Ordering::Relaxed);
        // Those that were taken, that lie in a queue, and that a thread was making or could not put there.
        assert!(after <= 2 * (1 + workers * 4), "{after} samples");
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(asked.load(Ordering::Relaxed), after, "no thread goes on");
    }
}

#[test]
fn what_makes_no_batch_is_refused() {
    let refused = |count: usize, options| {
        let loader = DataLoader::new(numbers(count), options, &Device::Cpu);
        loader.err().expect("it was taken").to_string()
    };
    assert!(refused(3, LoaderOptions::of(0)).contains("batch_size is 0"));
    assert!(refused(0, LoaderOptions::of(2)).contains("0 samples"));
    assert!(refused(3, LoaderOptions::of(4).drop_last()).contains("3 samples, too few for a batch of 4"));
    let error = loader(3, LoaderOptions::of(2)).epoch(0).unwrap().next().unwrap().unwrap().take::<3>();
    assert!(error.err().unwrap().to_string().contains("3 tensors"));
}

#[test]
fn arrays_must_have_as_many_samples_each() {
    assert!(Array::f32(&[0.0; 3], [2, 2]).err().unwrap().to_string().contains("3 elements"));
    let refused = |arrays: Vec<Array>| Arrays::new(arrays).err().expect("they were taken").to_string();
    assert!(refused(vec![]).contains("one and the same first dimension"));
    assert!(refused(vec![Array::f32(&[0.0], []).unwrap()]).contains("first dimension"));
    let [two, three] = [2, 3].map(|n| Array::f32(&vec![0.0; n], [n]).unwrap());
    assert!(refused(vec![two, three]).contains("(3)"));
    assert!(numbers(3).get(3).is_err());
}
