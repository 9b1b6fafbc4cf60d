//! Reads GGUF files, which may be untrusted: counts and lengths are checked against the size of the file.

use super::quantize::{GgmlType, SUPER_BLOCK};
use super::value::{self, Value};
use super::{ALIGNMENT, MAGIC, VERSION};
use crate::{Error, Result};
use memmap2::Mmap;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// ggml's largest number of dimensions.
const MOST_DIMS: u32 = 4;

/// A memory-mapped file with a parsed header.
pub struct GgufFile {
    path: PathBuf,
    map: Mmap,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, StoredTensor>,
}

/// Where a tensor lies.
#[derive(Debug)]
struct StoredTensor {
    dtype: GgmlType,
    /// Rows first, as everywhere but in the file.
    shape: Vec<usize>,
    start: usize,
    end: usize,
}

impl GgufFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If it cannot be read, is damaged, or has numbers of an unsupported type.
    pub fn open(path: &Path) -> Result<GgufFile> {
        let file = File::open(path).map_err(|e| Error::io("read", path, e))?;
        // SAFETY: the map is only read. Who changes the file meanwhile changes the values, or ends the process where it
        // becomes shorter.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io("map", path, e))?;
        let mut header = Header { bytes: &map, at: 0 };
        let read = header.read();
        let (metadata, tensors) = read.map_err(|message| Error::Checkpoint {
            path: path.to_path_buf(),
            message: format!("is damaged: {message}"),
        })?;
        Ok(GgufFile { path: path.to_path_buf(), map, metadata, tensors })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Type and shape of a tensor, rows first.
    pub fn spec(&self, name: &str) -> Option<(GgmlType, &[usize])> {
        self.tensors.get(name).map(|tensor| (tensor.dtype, &tensor.shape[..]))
    }

    /// The numbers of a tensor as f32.
    pub fn tensor(&self, name: &str) -> Option<Vec<f32>> {
        let mut values = vec![0.0; self.tensors.get(name)?.shape.iter().product()];
        self.read(name, 0, &mut values);
        Some(values)
    }

    /// The keys of all values, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys().map(String::as_str)
    }

    /// Bytes of the file.
    pub fn size_bytes(&self) -> usize {
        self.map.len()
    }

    /// Writes the numbers of a tensor from `first` on, as many as `out` has; nothing of a tensor that is not there.
    pub(super) fn read(&self, name: &str, first: usize, out: &mut [f32]) {
        let Some(StoredTensor { dtype, start, end, .. }) = self.tensors.get(name) else { return };
        let ((numbers, size), bytes) = (dtype.block(), &self.map[*start..*end]);
        let (mut first, mut out) = (first, out);
        while !out.is_empty() {
            let (block, at) = (first / numbers, first % numbers);
            let whole = if at == 0 { out.len() / numbers } else { 0 };
            let (now, rest) = out.split_at_mut(if whole > 0 { whole * numbers } else { out.len().min(numbers - at) });
            match whole {
                0 => {
                    let mut numbers_of_block = [0.0; SUPER_BLOCK];
                    dtype.decode(&bytes[block * size..][..size], &mut numbers_of_block[..numbers]);
                    now.copy_from_slice(&numbers_of_block[at..][..now.len()]);
                }
                whole => dtype.decode(&bytes[block * size..][..whole * size], now),
            }
            (first, out) = (first + now.len(), rest);
        }
    }
}

/// Reads from the start of a file on.
struct Header<'a> {
    bytes: &'a [u8],
    at: usize,
}

type Parsed<T> = std::result::Result<T, String>;

impl<'a> Header<'a> {
    fn read(&mut self) -> Parsed<(BTreeMap<String, Value>, BTreeMap<String, StoredTensor>)> {
        if self.take(4)? != MAGIC {
            return Err("it does not start with GGUF's magic number".into());
        }
        let version = self.u32()?;
        // Version 2 differs in the byte order that it allows.
        if version != VERSION && version != VERSION - 1 {
            return Err(format!("its GGUF version is {version}, expected {VERSION}"));
        }
        let (tensor_count, value_count) = (self.u64()?, self.u64()?);
        let mut metadata = BTreeMap::new();
        // Each pass takes bytes, so a count that is a lie ends with the file.
        for _ in 0..value_count {
            let key = self.text()?;
            let code = self.u32()?;
            let value = self.value(code).map_err(|message| format!("{key}: {message}"))?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(format!("it has the key {key} twice"));
            }
        }
        let alignment = match metadata.get("general.alignment") {
            None => ALIGNMENT,
            Some(Value::U32(alignment)) if alignment.is_power_of_two() => *alignment as usize,
            Some(other) => return Err(format!("general.alignment is {other:?}, which is not a power of two")),
        };
        let mut found = vec![];
        for _ in 0..tensor_count {
            found.push(self.tensor_info()?);
        }
        let data = self.at.next_multiple_of(alignment);
        let mut tensors = BTreeMap::new();
        for (name, dtype, shape, offset) in found {
            let tensor =
                self.place(dtype, shape, offset, data, alignment).map_err(|message| format!("{name} {message}"))?;
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(format!("it has the tensor {name} twice"));
            }
        }
        Ok((metadata, tensors))
    }

    fn tensor_info(&mut self) -> Parsed<(String, GgmlType, Vec<usize>, u64)> {
        let name = self.text()?;
        let dims = self.u32()?;
        if dims == 0 || dims > MOST_DIMS {
            return Err(format!("{name} has {dims} dimensions; expected 1 to {MOST_DIMS}"));
        }
        let mut shape = vec![];
        for _ in 0..dims {
            let size = self.u64()?;
            shape.push(usize::try_from(size).map_err(|_| format!("{name} has a dimension of {size}"))?);
        }
        shape.reverse();
        let code = self.u32()?;
        let dtype = GgmlType::ALL.into_iter().find(|dtype| dtype.code() == code).ok_or_else(|| {
            let read = GgmlType::ALL.map(GgmlType::name).join(", ");
            format!("{name} is of ggml's type {code}; read are {read}")
        })?;
        Ok((name, dtype, shape, self.u64()?))
    }

    /// Where the tensor lies in the file, if it lies there.
    fn place(
        &self,
        dtype: GgmlType,
        shape: Vec<usize>,
        offset: u64,
        data: usize,
        alignment: usize,
    ) -> Parsed<StoredTensor> {
        let (numbers, _) = dtype.block();
        let row = *shape.last().expect("it has a dimension");
        if !row.is_multiple_of(numbers) {
            return Err(format!("has rows of {row}, not a multiple of the blocks of {}", dtype.name()));
        }
        // A number takes at least half a byte, so a shape of more than twice the file's bytes lies outside of it.
        let elements = shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
        let elements = elements.filter(|elements| *elements / 2 <= self.bytes.len());
        let elements = elements.ok_or_else(|| format!("has the shape {shape:?}, more than the file holds"))?;
        let offset = usize::try_from(offset).ok().filter(|offset| offset.is_multiple_of(alignment));
        let start = offset.and_then(|offset| data.checked_add(offset));
        let end = start.and_then(|start| start.checked_add(dtype.size_bytes(elements)));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.bytes.len() => Ok(StoredTensor { dtype, shape, start, end }),
            _ => Err("lies outside of the file".into()),
        }
    }

    fn value(&mut self, code: u32) -> Parsed<Value> {
        Ok(match code {
            value::U32 => Value::U32(self.u32()?),
            value::I32 => Value::I32(self.u32()? as i32),
            value::F32 => Value::F32(f32::from_bits(self.u32()?)),
            value::BOOL => Value::Bool(self.take(1)?[0] != 0),
            value::STRING => Value::Text(self.text()?),
            value::ARRAY => {
                let (code, count) = (self.u32()?, self.u64()?);
                return self.array(code, count);
            }
            other => {
                let size = value::scalar_bytes(other).ok_or_else(|| format!("unknown value type {other}"))?;
                self.take(size)?;
                Value::Other
            }
        })
    }

    fn array(&mut self, code: u32, count: u64) -> Parsed<Value> {
        if code == value::STRING {
            // Each text takes 8 bytes or more: a count that is a lie ends with the file.
            let mut texts = vec![];
            for _ in 0..count {
                texts.push(self.text()?);
            }
            return Ok(Value::Texts(texts));
        }
        let size = value::scalar_bytes(code).ok_or_else(|| format!("unknown list type {code}"))?;
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(size));
        let bytes = self.take(bytes.ok_or_else(|| format!("its {count} values are more than the file holds"))?)?;
        let words = || bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(match code {
            value::I32 => Value::I32s(words().map(|word| word as i32).collect()),
            value::F32 => Value::F32s(words().map(f32::from_bits).collect()),
            _ => Value::Other,
        })
    }

    fn take(&mut self, count: usize) -> Parsed<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| format!("{count} bytes are missing from byte {} on", self.at))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn u32(&mut self) -> Parsed<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Parsed<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    fn text(&mut self) -> Parsed<String> {
        let length = self.u64()?;
        let at = self.at;
        let length = usize::try_from(length).map_err(|_| format!("a text of {length} bytes at byte {at}"))?;
        let bytes = self.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| format!("the text at byte {at} is not UTF-8"))
    }
}
