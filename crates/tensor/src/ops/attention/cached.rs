//! Attention with a KV cache: new tokens attend to themselves and to cached keys and values, so the cost of a token is
//! linear in the context. Shapes: packed qkv (B, n, P) of the tokens number `start` to `start + n` of each sequence,
//! cache (B, T, 2 K) of keys
//! | values, K = n_kv_head head_size -> y (B, n, C).

use super::{Attention, Dims, Heads, cpu};
use crate::gpu::{Buffer, Launch, Limits, Operand, Param, Plan, Value, buffer, param};
use crate::ops::*;
use crate::profile::MemoryKind;
use crate::shader;
use crate::tensor::{run, run_into};

/// Keys per split, which one workgroup processes (split-KV).
const SPLIT_KEYS: usize = 128;

/// Writes k | v of qkv to the rows of the cache (the output) from `start` on. Other rows are unchanged.
struct AppendKv {
    start: usize,
    /// (B, T, 2 K)
    cache: Spec,
}

/// y. Inputs: qkv and the cache. When it also appends, the cache is the second output instead.
struct CachedAttention {
    op: Attention,
    /// The cached tokens of each sequence; of a ragged batch the most.
    start: usize,
    /// The cache to which keys and values are appended.
    append: Option<Spec>,
    /// Whether sequences differ in length: their cached tokens are the second input, (B) of u32. n is 1, and a sequence
    /// with as many as the cache has rows, or more, is idle.
    ragged: bool,
}

impl Kernel for AppendKv {
    fn name(&self) -> &'static str {
        "kv_cache"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![self.cache.clone()])
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        // The keys and values of the input, read and written.
        let kept = inputs[0].shape.rows() * self.cache.shape.last_dim();
        Cost { flops: 0.0, bytes: (kept * (inputs[0].dtype.size_bytes() + self.cache.dtype.size_bytes())) as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        copy_kv(inputs[0].spec, inputs[0].f32(), &mut outputs[0], self.start);
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        Plan::one(append(inputs[0], &self.cache, self.start, Operand::Output(0)))
    }
}

/// Writes the keys and values of the input qkv to the cache, the operand `written`.
fn append(qkv: &Spec, cache: &Spec, start: usize, written: Operand) -> Launch {
    let ([_, tokens, packed], [_, room, width]) = (sizes(qkv), sizes(cache));
    let len = qkv.shape.rows() * width;
    Launch {
        shader: shader!(kv_cache),
        values: vec![
            ("pass", "append".into()),
            ("T", qkv.dtype.name().into()),
            ("C", cache.dtype.name().into()),
            ("vector", 1usize.into()),
        ],
        buffers: vec![buffer("qkv", qkv.dtype.name(), Operand::Input(0)), buffer("cache", cache.dtype.name(), written)],
        params: vec![
            param("len", len),
            param("packed", packed),
            param("width", width),
            param("start", start),
            param("tokens", tokens),
            param("room", room),
        ],
        workgroups: len.div_ceil(256),
    }
}

/// The sizes of a three-dimensional tensor; `check_cache` has checked its rank.
fn sizes(spec: &Spec) -> [usize; 3] {
    spec.shape[..].try_into().expect("three dimensions")
}

/// Copies the last elements of each row of x (B, n, P) to the rows of the cache (B, T, 2 K) from `start` on.
pub(in crate::ops) fn copy_kv(of: &Spec, x: &[f32], cache: &mut ViewMut, start: usize) {
    let ([_, new, packed], [_, room, kept]) = (sizes(of), sizes(cache.spec));
    let sequences = x.chunks((new * packed).max(1)).zip(cache.f32().chunks_mut((room * kept).max(1)));
    for (x, cache) in sequences {
        let rows = x.chunks(packed).zip(cache.chunks_mut(kept).skip(start));
        rows.for_each(|(x, row)| row.copy_from_slice(&x[packed - kept..]));
    }
}

impl CachedAttention {
    /// Sizes of the new tokens.
    fn dims(&self, qkv: &Spec) -> Dims {
        self.op.dims(qkv)
    }

    /// The cache.
    fn cache<'a>(&'a self, inputs: &[&'a Spec]) -> &'a Spec {
        self.append.as_ref().unwrap_or_else(|| inputs[1])
    }

    /// Parameters for a cache with `room` tokens and this number of key splits.
    fn params(&self, d: Dims, room: usize, splits: usize) -> Vec<Param> {
        vec![
            param("queries", d.time),
            param("rows", d.batch * d.time),
            param("room", room),
            param("n_head", d.n_head),
            param("n_kv_head", d.n_kv_head),
            param("window", self.op.heads.window.unwrap_or(usize::MAX).min(self.start + d.time)),
            param("head_size", d.head_size),
            param("start", self.start),
            param("scale", Attention::scale(d)),
            param("splits", splits),
        ]
    }
}

impl Kernel for CachedAttention {
    fn name(&self) -> &'static str {
        "cached_attention"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        let y = Spec::new(inputs[0].shape.with_last_dim(self.dims(inputs[0]).width()), inputs[0].dtype);
        Ok([y].into_iter().chain(self.append.clone()).collect())
    }

    fn cost(&self, inputs: &[&Spec], _: &[&Spec]) -> Cost {
        let d = self.dims(inputs[0]);
        // A key and a value of the width C for each pair of tokens that see each other.
        let window = self.op.heads.window.unwrap_or(usize::MAX);
        let pairs: usize = (self.start + 1..=self.start + d.time).map(|keys| keys.min(window)).sum();
        let kept = (self.start + d.time).min(window.saturating_add(d.time)) * 2 * d.kv_width();
        let flops = (4 * d.batch * pairs * d.width()) as f64;
        let size = self.cache(inputs).dtype.size_bytes();
        Cost { flops, bytes: (size * d.batch * kept) as f64 + inputs[0].size_bytes() as f64 }
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (d, qkv) = (self.dims(inputs[0].spec), inputs[0].f32());
        match outputs {
            [y] => cpu::cached(&self.op, d, &|_| Some(self.start), qkv, inputs[1].f32(), y.f32()),
            [y, cache] if self.ragged => {
                let ([_, room, kept], starts) = (sizes(cache.spec), inputs[1].u32());
                let start = |sequence: usize| Some(starts[sequence] as usize).filter(|start| *start < room);
                for (sequence, x) in qkv.chunks(d.packed_width()).enumerate() {
                    if let Some(start) = start(sequence) {
                        let row = &mut cache.f32()[(sequence * room + start) * kept..][..kept];
                        row.copy_from_slice(&x[d.packed_width() - kept..]);
                    }
                }
                cpu::cached(&self.op, d, &start, qkv, cache.f32(), y.f32());
            }
            [y, cache] => {
                copy_kv(inputs[0].spec, qkv, cache, self.start);
                cpu::cached(&self.op, d, &|_| Some(self.start), qkv, cache.f32(), y.f32());
            }
            _ => unreachable!("it has one output or two"),
        }
    }

    fn gpu(&self, inputs: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        use Operand::{Input, Output, ReadScratch, Scratch};
        let (d, cache) = (self.dims(inputs[0]), self.cache(inputs));
        let ([_, room, _], kept) = (sizes(cache), cache.dtype);
        // One token sees its own key and value without the cache; those of several are put there first.
        let (appends, first) = match &self.append {
            Some(cache) if d.time > 1 => (false, Some(append(inputs[0], cache, self.start, Output(1)))),
            cache => (cache.is_some(), None),
        };
        let cache = if self.append.is_some() { Output(1) } else { Input(1) };
        let vector = if d.head_size.is_multiple_of(4) { 4 } else { 1 };
        let columns = (d.head_size / vector).next_power_of_two();
        let splits = (self.start + d.time).div_ceil(SPLIT_KEYS);
        let launch = |values: Vec<(&'static str, Value)>, buffers: Vec<Buffer>, workgroups| Launch {
            shader: shader!(kv_cache),
            values,
            buffers,
            params: self.params(d, room, splits),
            workgroups,
        };
        let split_keys = ("split_keys", SPLIT_KEYS.into());
        let element = inputs[0].dtype.name();
        let split = vec![
            ("pass", "split".into()),
            ("T", element.into()),
            ("C", kept.name().into()),
            ("vector", vector.into()),
            split_keys,
            ("columns", columns.into()),
            ("appends", appends.into()),
            ("alone", (splits == 1).into()),
            ("cache_is_output", self.append.is_some().into()),
            ("ragged", self.ragged.into()),
        ];
        let combine = vec![
            ("pass", "combine".into()),
            ("T", element.into()),
            split_keys,
            ("C", "f32".into()),
            ("vector", 1usize.into()),
            ("ragged", self.ragged.into()),
        ];
        let floats = |name, operand| buffer(name, "f32", operand);
        let partials = d.batch * d.time * d.n_head * splits;
        let vectors = |name, dtype: DType, operand| buffer(name, dtype.wgsl(vector), operand);
        let mut operands = vec![vectors("qkv", inputs[0].dtype, Input(0)), vectors("cache", kept, cache)];
        let starts = self.ragged.then(|| buffer("starts", "u32", Input(1)));
        operands.extend(starts);
        if splits == 1 {
            let y = vectors("y", inputs[0].dtype, Output(0));
            let split = launch(split, [&operands[..], &[y]].concat(), partials);
            return Plan { scratch: vec![], launches: first.into_iter().chain([split]).collect() };
        }
        let split = launch(split, [&operands[..], &[floats("partials", Scratch(0))]].concat(), partials);
        let mut buffers = vec![floats("partials", ReadScratch(0)), buffer("y", element, Output(0))];
        buffers.extend(starts);
        let combine = launch(combine, buffers, (d.batch * d.time * d.width()).div_ceil(64));
        let launches = first.into_iter().chain([split, combine]).collect();
        Plan { scratch: vec![4 * partials * (2 + d.head_size)], launches }
    }
}

impl Heads {
    /// Checks that the keys and values of packed (B, n, P) can be written to rows of a cache from `start` on.
    ///
    /// # Errors
    /// If the heads do not fit, or the cache is full.
    pub fn check_cache(self, name: &'static str, qkv: &Spec, cache: &Spec, start: usize) -> Result<()> {
        [qkv, cache].iter().filter(|spec| spec.dtype != DType::F16).try_for_each(|spec| expect_f32(name, &[spec]))?;
        let op = Attention { heads: self, documents: false, dropout: None };
        op.output_specs(&[qkv])?;
        let d = op.dims(qkv);
        let (batch, kept, end) = (d.batch, 2 * d.kv_width(), start.saturating_add(d.time));
        match cache.shape[..] {
            [sequences, room, width] if sequences == batch && width == kept && end <= room => Ok(()),
            _ => Err(shape_error(name, format!("a cache ({batch}, {end} or more, {kept})"), cache)),
        }
    }
}

impl Tensor {
    /// [`Tensor::cached_attention`] that first appends the keys and values of the n tokens to `cache` (B, T, 2 K), f32
    /// or f16, from row `start` on -> (B, n, C).
    ///
    /// # Errors
    /// If the shapes do not fit, or the cache is full.
    pub fn append_and_attend(&self, heads: Heads, cache: &Tensor, start: usize) -> Result<Tensor> {
        heads.check_cache("append_and_attend", self.spec(), cache.spec(), start)?;
        if start == 0 {
            run_into(&AppendKv { start, cache: cache.spec().clone() }, &[self], &[cache])?;
            return self.cached_attention(heads, cache, start);
        }
        let op = Attention { heads, documents: false, dropout: None };
        let kernel = CachedAttention { op, start, append: Some(cache.spec().clone()), ragged: false };
        let y = kernel.output_specs(&[self.spec()])?.remove(0);
        let y = Tensor::empty(y, &self.device(), MemoryKind::Activations)?;
        run_into(&kernel, &[self], &[&y, cache])?;
        Ok(y)
    }

    /// [`Tensor::append_and_attend`] of one new token (B, 1, P) of each sequence of a ragged batch, which follows
    /// `starts` (B), u32, cached tokens -> (B, 1, C). Sequences that start at T or later are idle: nothing is appended
    /// to them, and their rows of the result are 0. A row depends on its own sequence alone.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn append_and_attend_ragged(&self, heads: Heads, cache: &Tensor, starts: &Tensor) -> Result<Tensor> {
        const NAME: &str = "append_and_attend_ragged";
        heads.check_cache(NAME, self.spec(), cache.spec(), 0)?;
        expect_dtype(NAME, DType::U32, &[starts.spec()])?;
        let [batch, tokens, _] = sizes(self.spec());
        if tokens != 1 {
            return Err(shape_error(NAME, "one token of each sequence (B, 1, P)", self.spec()));
        }
        if starts.shape()[..] != [batch] {
            return Err(shape_error(NAME, format!("the cached tokens of each sequence ({batch})"), starts.spec()));
        }
        let op = Attention { heads, documents: false, dropout: None };
        let start = cache.shape()[1] - 1;
        let kernel = CachedAttention { op, start, append: Some(cache.spec().clone()), ragged: true };
        let y = kernel.output_specs(&[self.spec()])?.remove(0);
        let y = Tensor::empty(y, &self.device(), MemoryKind::Activations)?;
        run_into(&kernel, &[self, starts], &[&y, cache])?;
        Ok(y)
    }

    /// Causal attention of n new tokens after `start` cached ones: packed queries, keys and values (B, n, P), as in
    /// [`Tensor::causal_attention`] -> (B, n, C). `cache` (B, T, 2 K) already holds the keys and values of all `start +
    /// n` tokens, written by [`Tensor::rope_append`]. For inference: nothing is recorded on the tape.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn cached_attention(&self, heads: Heads, cache: &Tensor, start: usize) -> Result<Tensor> {
        heads.check_cache("cached_attention", self.spec(), cache.spec(), start)?;
        if start == 0 {
            // Nothing came before: the tiles of the usual kernel are faster.
            return self.causal_attention(heads, None, None);
        }
        let op = Attention { heads, documents: false, dropout: None };
        Ok(run(&CachedAttention { op, start, append: None, ragged: false }, &[self, cache])?.remove(0))
    }
}
