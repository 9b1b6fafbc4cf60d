//! Memory-mapped tensors of a folder: `model.safetensors`, or the shards in its index.

use super::read_limited;
use crate::{Error, Result};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, SafeTensors};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Component, Path, PathBuf};

pub const WEIGHTS: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";
/// Those of models with a hundred thousand tensors have ten million.
const MOST_INDEX_BYTES: u64 = 1 << 26;
/// Pickle files of older versions of transformers.
const PICKLES: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// A tensor in its memory-mapped file.
pub struct StoredTensor<'a> {
    pub dtype: Dtype,
    pub shape: &'a [usize],
    /// Little-endian.
    pub bytes: &'a [u8],
    pub file: &'a Path,
}

/// All tensors of a folder, by name.
pub struct WeightFiles {
    shards: Vec<Shard>,
    /// The file that lists the tensors, for errors about missing ones.
    pub path: PathBuf,
    /// The shard of each tensor.
    tensors: BTreeMap<String, usize>,
}

struct Shard {
    path: PathBuf,
    map: Mmap,
    header: Metadata,
    /// Where the header ends.
    data: usize,
}

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl WeightFiles {
    /// Opens the files of a folder and reads their headers.
    ///
    /// # Errors
    /// If there are none, or one is missing, damaged, or outside the folder.
    pub fn open(folder: &Path) -> Result<WeightFiles> {
        let (single, index) = (folder.join(WEIGHTS), folder.join(INDEX));
        if single.is_file() || !index.is_file() {
            if !single.exists()
                && let Some(name) = PICKLES.into_iter().find(|name| folder.join(name).is_file())
            {
                return Err(pickled(folder, name));
            }
            return WeightFiles::of_file(single);
        }
        let damaged = |message: String| Error::Checkpoint { path: index.clone(), message };
        let text = read_limited(&index, MOST_INDEX_BYTES)?;
        let Index { weight_map } = serde_json::from_str(&text).map_err(|e| damaged(format!("is damaged: {e}")))?;
        let names: BTreeSet<&String> = weight_map.values().collect();
        if names.is_empty() {
            return Err(damaged("names no file".into()));
        }
        let shards = names.iter().map(|name| open_shard(folder, name, &damaged)).collect::<Result<Vec<Shard>>>()?;
        let mut tensors = BTreeMap::new();
        for (place, shard) in shards.iter().enumerate() {
            for name in shard.header.tensors().into_keys() {
                if let Some(other) = tensors.insert(name.clone(), place) {
                    let other = shards[other].path.display();
                    return Err(Error::Checkpoint {
                        path: shard.path.clone(),
                        message: format!("has the tensor {name}, which is also in {other}"),
                    });
                }
            }
        }
        for (tensor, file) in &weight_map {
            if tensors.get(tensor).is_none_or(|place| shards[*place].path != folder.join(file)) {
                return Err(damaged(format!("lists {tensor} in {file}, which does not have it")));
            }
        }
        Ok(WeightFiles { shards, path: index, tensors })
    }

    /// Opens one file and reads its header.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn of_file(path: PathBuf) -> Result<WeightFiles> {
        let shard = Shard::open(path.clone())?;
        let tensors = shard.header.tensors().into_keys().map(|name| (name, 0)).collect();
        Ok(WeightFiles { shards: vec![shard], path, tensors })
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        let shard = &self.shards[*self.tensors.get(name)?];
        let info = shard.header.info(name)?;
        let (start, end) = info.data_offsets;
        let bytes = &shard.map[shard.data..][start..end];
        Some(StoredTensor { dtype: info.dtype, shape: &info.shape, bytes, file: &shard.path })
    }

    /// Bytes of all files.
    pub fn size_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.map.len()).sum()
    }
}

impl Shard {
    fn open(path: PathBuf) -> Result<Shard> {
        let file = File::open(&path).map_err(|e| Error::io("read", &path, e))?;
        // SAFETY: the map is only read. Who changes the file meanwhile changes the values, or ends the process where it
        // becomes shorter; checkpoints are written under another name and never changed.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io("map", &path, e))?;
        // Checks that the tensors lie side by side and end with the file.
        let (length, header) = SafeTensors::read_metadata(&map)
            .map_err(|e| Error::Checkpoint { path: path.clone(), message: format!("is damaged: {e}") })?;
        Ok(Shard { path, map, header, data: 8 + length })
    }
}

/// Opens a file that the index names.
fn open_shard(folder: &Path, name: &str, damaged: &dyn Fn(String) -> Error) -> Result<Shard> {
    if !is_file_name(name) {
        return Err(damaged(format!("names {name:?}, which is not a file of this folder")));
    }
    let path = folder.join(name);
    if !path.is_file() {
        return Err(damaged(format!("names {name:?}, which is missing: download it again")));
    }
    let real = |path: &Path| path.canonicalize().map_err(|e| Error::io("find", path, e));
    let target = real(&path)?;
    // In the cache of Hugging Face's programs, files are links into the folder of blobs beside that of snapshots.
    let blobs = real(folder)?.ancestors().nth(2).map(|model| model.join("blobs"));
    let blobs = blobs.and_then(|blobs| blobs.canonicalize().ok());
    if !(target.starts_with(real(folder)?) || blobs.is_some_and(|blobs| target.starts_with(blobs))) {
        let target = target.display();
        return Err(damaged(format!("names {name:?}, a link to {target} outside of this folder: copy the file here")));
    }
    Shard::open(path)
}

/// Whether this is the name of a file, and no path to elsewhere.
fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !name.contains(['\\', ':'])
}

fn pickled(folder: &Path, name: &str) -> Error {
    let shown = folder.display();
    let message = format!(
        "is a pickle, which may run any program; convert it once where transformers is installed: python3 -c \"from \
         transformers import AutoModelForCausalLM as M; M.from_pretrained('{shown}').save_pretrained('{shown}')\""
    );
    Error::Checkpoint { path: folder.join(name), message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;
    use std::fs;

    /// A file with one tensor, one f32 of this value.
    fn shard(folder: &Path, file: &str, tensor: &str, value: f32) {
        let bytes = value.to_le_bytes();
        let view = TensorView::new(Dtype::F32, vec![1], &bytes).unwrap();
        fs::write(folder.join(file), safetensors::serialize([(tensor, view)], None).unwrap()).unwrap();
    }

    fn index(folder: &Path, map: &str) {
        fs::write(folder.join(INDEX), format!(r#"{{"metadata": {{}}, "weight_map": {map}}}"#)).unwrap();
    }

    #[test]
    fn tensors_are_found_in_the_shard_that_the_index_names() {
        let dir = tempfile::tempdir().unwrap();
        shard(dir.path(), "1.safetensors", "a", 1.5);
        shard(dir.path(), "2.safetensors", "b", 2.5);
        index(dir.path(), r#"{"b": "2.safetensors", "a": "1.safetensors"}"#);
        let files = WeightFiles::open(dir.path()).unwrap();
        assert_eq!(files.names().collect::<Vec<_>>(), ["a", "b"]);
        let b = files.tensor("b").unwrap();
        assert_eq!((b.bytes, b.shape, b.file.ends_with("2.safetensors")), (&2.5f32.to_le_bytes()[..], &[1][..], true));
        assert!(files.tensor("c").is_none());
    }

    #[test]
    fn what_is_missing_damaged_or_elsewhere_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |told: &[&str]| {
            let error = WeightFiles::open(dir.path()).err().expect("an error").to_string();
            assert!(told.iter().all(|told| error.contains(told)), "{error:?} lacks one of {told:?}");
        };
        refused(&[WEIGHTS]);
        fs::write(dir.path().join("pytorch_model.bin"), "").unwrap();
        refused(&["pytorch_model.bin", "save_pretrained"]);
        for outside in ["../a.safetensors", "/etc/passwd", "..", "a/b", "c:d", ""] {
            index(dir.path(), &format!(r#"{{"a": {outside:?}}}"#));
            refused(&[INDEX, "not a file of this folder"]);
        }
        index(dir.path(), r#"{"a": "1.safetensors"}"#);
        refused(&[INDEX, "1.safetensors", "missing"]);
        shard(dir.path(), "1.safetensors", "b", 1.5);
        refused(&[INDEX, "lists a in 1.safetensors, which does not have it"]);
        for damage in [&b""[..], b"short", &[0xff; 16], &(1u64 << 63).to_le_bytes()] {
            fs::write(dir.path().join("1.safetensors"), damage).unwrap();
            refused(&["1.safetensors", "is damaged"]);
        }
        for index in
            [&b"{"[..], b"", b"[1]", b"\xff\xfe", br#"{"weight_map": 3}"#, br#"{"weight_map": {"a": 3}}"#, b"{}"]
        {
            fs::write(dir.path().join(INDEX), index).unwrap();
            refused(&[INDEX]);
        }
        index(dir.path(), "{}");
        refused(&[INDEX, "names no file"]);
        // Zeros of which the disk holds none.
        File::create(dir.path().join(INDEX)).unwrap().set_len(1 << 40).unwrap();
        refused(&[INDEX, "is longer than 67108864 bytes"]);
    }

    #[test]
    fn a_tensor_in_two_shards_is_refused_and_one_that_the_index_lacks_is_found() {
        let dir = tempfile::tempdir().unwrap();
        shard(dir.path(), "1.safetensors", "a", 1.5);
        shard(dir.path(), "2.safetensors", "a", 2.5);
        shard(dir.path(), "3.safetensors", "b", 3.5);
        index(dir.path(), r#"{"a": "1.safetensors", "c": "3.safetensors"}"#);
        let error = |path: &Path| WeightFiles::open(path).err().expect("an error").to_string();
        assert!(error(dir.path()).contains("lists c in 3.safetensors, which does not have it"));
        index(dir.path(), r#"{"a": "1.safetensors", "b": "3.safetensors"}"#);
        assert_eq!(WeightFiles::open(dir.path()).unwrap().names().collect::<Vec<_>>(), ["a", "b"]);
        index(dir.path(), r#"{"a": "1.safetensors", "b": "2.safetensors"}"#);
        let message = error(dir.path());
        assert!(message.contains("2.safetensors: has the tensor a, which is also in"), "{message}");
    }

    #[cfg(unix)]
    #[test]
    fn a_shard_may_be_a_link_to_a_blob_and_to_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("models--org--name");
        let folder = model.join("snapshots/0123");
        [folder.clone(), model.join("blobs")].iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        let link = |target: &str| {
            let path = folder.join("1.safetensors");
            let _ = fs::remove_file(&path);
            std::os::unix::fs::symlink(target, path).unwrap();
        };
        index(&folder, r#"{"a": "1.safetensors"}"#);
        shard(&model.join("blobs"), "abc", "a", 1.5);
        link("../../blobs/abc");
        assert!(WeightFiles::open(&folder).is_ok());
        shard(dir.path(), "elsewhere", "a", 1.5);
        link("../../../elsewhere");
        let error = WeightFiles::open(&folder).err().expect("an error").to_string();
        assert!(error.contains("\"1.safetensors\", a link to") && error.contains("outside of this folder"), "{error}");
    }
}
