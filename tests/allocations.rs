//! Training on the CPU asks the system for no memory once its buffers are there: a counting allocator watches whole
//! steps.

use rustyflow::models::{Gpt2, LanguageModel, ModelConfig, ModelKind, Past};
use rustyflow::nn::Dropout;
use rustyflow::ops::Criterion;
use rustyflow::optim::{Kind, Optimizer, ParameterArena};
use rustyflow::{DType, Device, Tensor};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

/// Counts what is asked for, of every thread, leaving out the packed operands of `gemm`: that crate asks for them
/// within a product, gives them back at its end, and lets nobody lend it memory. They alone are aligned to 128 bytes.
struct Counting;

const GEMM_ALIGN: usize = 128;

static ASKED_BYTES: AtomicUsize = AtomicUsize::new(0);
static LARGEST_BYTES: AtomicUsize = AtomicUsize::new(0);
static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() != GEMM_ALIGN {
            ASKED_BYTES.fetch_add(layout.size(), Relaxed);
            LARGEST_BYTES.fetch_max(layout.size(), Relaxed);
            LIVE_BYTES.fetch_add(layout.size() as isize, Relaxed);
        }
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if layout.align() != GEMM_ALIGN {
            LIVE_BYTES.fetch_sub(layout.size() as isize, Relaxed);
        }
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// More than any piece of bookkeeping: a vector of a kernel's operands, a node of the tape, a shape, an op in its box
/// (456 bytes at most when this was written). And no more than a row of any activation: 256 numbers.
const PIECE_BYTES: usize = 1 << 10;
/// The bookkeeping of a step: some hundred kernels (89 KB when this was written), whatever the width of the model.
const STEP_BYTES: usize = 128 << 10;

#[test]
fn steps_on_the_cpu_ask_for_no_memory_but_for_bookkeeping() {
    let config = ModelConfig {
        kind: ModelKind::GPT2,
        vocab_size: 300,
        block_size: 64,
        n_layer: 2,
        n_head: 4,
        n_embd: 256,
        bias: true,
        tie_embeddings: true,
        llama: None,
    };
    rustyflow::set_threads(2);
    let mut model = Gpt2::new(config, 1).unwrap();
    let parameters = ParameterArena::new(&mut model, &Device::Cpu, DType::F32).unwrap();
    let kind = Kind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    let mut optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0).unwrap();
    let tokens = |seed: u32| (0..256).map(|i| (i * 37 + seed) % 300).collect::<Vec<u32>>();
    let [ids, targets] = [1, 2].map(|seed| Tensor::from_u32(&tokens(seed), [4, 64], &Device::Cpu).unwrap());
    let mut step = |number: u64| {
        parameters.zero_gradients();
        let loss = model
            .loss(&ids, &targets, Past::Nothing, &Dropout::new(0.1, 1, number), Criterion::default(), None)
            .unwrap();
        loss.backward().unwrap();
        optimizer.step(&parameters, 1e-3).unwrap();
    };
    // These fill the pool, and the scratch memory of each thread, whichever tasks it takes.
    (0..30).for_each(&mut step);
    const STEPS: usize = 20;
    // What is mapped does not pass through the allocator.
    let pool = || Device::Cpu.stats().memory;
    let (live, before) = (LIVE_BYTES.load(Relaxed), pool());
    ASKED_BYTES.store(0, Relaxed);
    LARGEST_BYTES.store(0, Relaxed);
    (0..STEPS as u64).for_each(&mut step);
    let asked = ASKED_BYTES.load(Relaxed) / STEPS;
    let largest = LARGEST_BYTES.load(Relaxed);
    let grown = LIVE_BYTES.load(Relaxed) - live;
    let after = pool();
    assert_eq!((after.buffers, after.reserved_bytes), (before.buffers, before.reserved_bytes));
    let counts = format!("{asked} bytes a step, {largest} at once, {grown} kept after {STEPS}");
    assert!(largest < PIECE_BYTES && asked <= STEP_BYTES && grown < PIECE_BYTES as isize, "{counts}");
}
