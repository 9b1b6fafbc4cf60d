//! Attention of new tokens to themselves and to all before them, whose keys and values are kept: each costs time that
//! grows with the tokens before it, where attention of the whole context would grow with their square.
//! Shapes: qkv (1, n, 3C) of the tokens number `start` to `start + n`, cache (T, 2C) of keys | values -> y (1, n, C).

use super::{Attention, Dims, cpu};
use crate::gpu::{Buffer, Launch, Limits, Operand, Plan, Value, buffer, param};
use crate::ops::*;
use crate::shader;
use crate::tensor::{run, run_into};

/// Keys of a split, which one workgroup looks at (split-KV).
const SPLIT_KEYS: usize = 128;

/// Writes k | v of qkv to the rows of the cache, the output, that begin at `start`. The others keep what they hold.
struct AppendKv {
    start: usize,
    /// (T, 2C)
    cache: Spec,
}

/// y. Inputs: qkv, and the cache with its keys and values.
struct CachedAttention {
    n_head: usize,
    start: usize,
}

impl Kernel for AppendKv {
    fn name(&self) -> &'static str {
        "kv_cache"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![self.cache.clone()])
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        // Two thirds of the input, read and written.
        Cost { flops: 0.0, bytes: inputs[0].size_bytes() as f64 * 4.0 / 3.0 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let two = self.cache.shape.last_dim();
        let rows = inputs[0].f32().chunks(two / 2 * 3).zip(outputs[0].f32().chunks_mut(two).skip(self.start));
        rows.for_each(|(qkv, row)| row.copy_from_slice(&qkv[two / 2..]));
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let two = self.cache.shape.last_dim();
        let len = inputs[0].shape.rows() * two;
        Plan::one(Launch {
            shader: shader!("kv_cache"),
            values: vec![("pass", "append".into())],
            buffers: vec![buffer("qkv", "f32", Operand::Input(0)), buffer("cache", "f32", Operand::Output(0))],
            params: vec![param("len", len), param("width", two), param("start", self.start)],
            workgroups: len.div_ceil(256),
        })
    }
}

impl CachedAttention {
    /// Of the new tokens.
    fn dims(&self, qkv: &Spec) -> Dims {
        Attention { n_head: self.n_head, dropout: None }.dims(qkv)
    }
}

impl Kernel for CachedAttention {
    fn name(&self) -> &'static str {
        "cached_attention"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new(inputs[0].shape.with_last_dim(inputs[0].shape.last_dim() / 3), DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        let d = self.dims(inputs[0]);
        // A key and a value of the width C for each pair of tokens.
        let pairs = d.time * self.start + d.time * (d.time + 1) / 2;
        let kept = (self.start + d.time) * 2 * d.width();
        Cost { flops: (4 * pairs * d.width()) as f64, bytes: (4 * kept) as f64 + inputs[0].size_bytes() as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        cpu::cached(self.dims(inputs[0].spec), self.start, inputs[0].f32(), inputs[1].f32(), outputs[0].f32());
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output, ReadScratch, Scratch};
        let d = self.dims(inputs[0]);
        let columns = d.head_size.next_power_of_two();
        let splits = (self.start + d.time).div_ceil(SPLIT_KEYS);
        let launch = |values: Vec<(&'static str, Value)>, buffers: Vec<Buffer>, workgroups| Launch {
            shader: shader!("kv_cache"),
            values,
            buffers,
            params: vec![
                param("queries", d.time),
                param("n_head", d.n_head),
                param("head_size", d.head_size),
                param("start", self.start),
                param("scale", Attention::scale(d)),
                param("splits", splits),
            ],
            workgroups,
        };
        let split_keys = ("split_keys", SPLIT_KEYS.into());
        let split = vec![("pass", "split".into()), split_keys, ("columns", columns.into())];
        let combine = vec![("pass", "combine".into()), split_keys];
        let floats = |name, operand| buffer(name, "f32", operand);
        let partials = d.time * d.n_head * splits;
        Plan {
            scratch: vec![4 * partials * (2 + d.head_size)],
            launches: vec![
                launch(
                    split,
                    vec![floats("qkv", Input(0)), floats("cache", Input(1)), floats("partials", Scratch(0))],
                    partials,
                ),
                launch(
                    combine,
                    vec![floats("partials", ReadScratch(0)), floats("y", Output(0))],
                    (d.time * d.width()).div_ceil(64),
                ),
            ],
        }
    }
}

impl Tensor {
    /// Causal attention of packed (1, n, 3C) queries, keys and values, those of [`Tensor::causal_attention`], of n
    /// tokens that follow `start` others: (1, n, C). The others' keys and values are the first rows of `cache` (T, 2C),
    /// f32; those of the n are written to the rows after them. For inference: nothing is recorded on the tape.
    ///
    /// # Errors
    /// If the shapes do not fit, or the cache is full.
    pub(crate) fn cached_attention(&self, n_head: usize, cache: &Tensor, start: usize) -> Result<Tensor> {
        let op = "cached_attention";
        expect_dtype(op, DType::F32, &[cache.spec()])?;
        let &[1, n, width] = &self.shape()[..] else {
            return Err(shape_error(op, "packed (1, n, 3C)", self.spec()));
        };
        let room = cache.shape().rows();
        if cache.shape()[..] != [room, width / 3 * 2] || n > room.saturating_sub(start) {
            let expected = format!("a cache ({} or more, {})", start.saturating_add(n), width / 3 * 2);
            return Err(shape_error(op, expected, cache.spec()));
        }
        Attention { n_head, dropout: None }.output_specs(&[self.spec()])?;
        let qkv = self.to_dtype(DType::F32)?;
        run_into(&AppendKv { start, cache: cache.spec().clone() }, &[&qkv], &[cache])?;
        if start == 0 {
            // Nothing came before: the tiles of the usual kernel are faster.
            return self.causal_attention(n_head, None);
        }
        run(&CachedAttention { n_head, start }, &[&qkv, cache])?.remove(0).to_dtype(self.dtype())
    }
}
