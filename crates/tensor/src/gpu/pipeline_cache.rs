//! The driver's compiled pipelines, cached between runs in `<cache folder>/pipelines/<key>`; wgpu provides the key.
//!
//! ```text
//! rustyflow 0.1.0 wgpu_pipeline_cache_vulkan_4318_9013 123456 <SHA-256>\n
//! <123456 bytes from wgpu>
//! ```
//! A driver may crash on bytes that it did not write, so a file is used only if its first line matches the rest
//! exactly.

use crate::cache::{hex, store};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The driver's pipeline cache and the file that it is kept in.
pub(super) struct PipelineCache {
    pub raw: wgpu::PipelineCache,
    path: PathBuf,
    key: String,
    /// The first line of the file as it was found; empty if there was none that could be used.
    found: String,
}

impl PipelineCache {
    /// `None` if the device has no pipeline caches, or refuses this one.
    pub fn open(device: &wgpu::Device, folder: &Path, key: String) -> Option<PipelineCache> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let path = folder.join("pipelines").join(&key);
        let create = |data: Option<&[u8]>| {
            let refused = device.push_error_scope(wgpu::ErrorFilter::Validation);
            let descriptor = wgpu::PipelineCacheDescriptor { label: Some("pipelines"), data, fallback: true };
            // SAFETY: `read` saw that these are the bytes which `save` got from wgpu under the same key.
            let raw = unsafe { device.create_pipeline_cache(&descriptor) };
            match pollster::block_on(refused.pop()) {
                None => Some(raw),
                Some(error) => {
                    tracing::warn!("{} is not used: {error}", path.display());
                    None
                }
            }
        };
        let data = read(&path, &key);
        tracing::debug!(path = %path.display(), bytes = data.as_ref().map_or(0, Vec::len), "pipeline cache");
        let raw = create(data.as_deref()).or_else(|| create(None))?;
        let found = data.map_or(String::new(), |data| first_line(&key, &data));
        Some(PipelineCache { raw, path, key, found })
    }

    /// Writes the file if there is anything new.
    pub fn save(&self) {
        let Some(data) = self.raw.get_data() else { return };
        let line = first_line(&self.key, &data);
        if line != self.found {
            store(&self.path, &[line.as_bytes(), &data].concat());
            tracing::debug!(path = %self.path.display(), bytes = data.len(), "pipeline cache written");
        }
    }
}

/// Which version wrote a file.
const VERSION: &str = concat!("rustyflow ", env!("CARGO_PKG_VERSION"), " ");

fn first_line(key: &str, data: &[u8]) -> String {
    let hash = hex(&Sha256::digest(data));
    format!("{VERSION}{key} {} {hash}\n", data.len())
}

/// The bytes that a file keeps; `None` if there is none, it is another version's or it is damaged.
fn read(path: &Path, key: &str) -> Option<Vec<u8>> {
    let mut bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return None,
        Err(error) => {
            tracing::warn!("cannot read {}: {error}; shaders are compiled again", path.display());
            return None;
        }
    };
    let end = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |at| at + 1);
    let data = bytes.split_off(end);
    if bytes == first_line(key, &data).as_bytes() {
        return Some(data);
    }
    let ours = bytes.starts_with(b"rustyflow ") && bytes.ends_with(b"\n");
    if ours && !bytes.starts_with(VERSION.as_bytes()) {
        tracing::debug!(path = %path.display(), "pipeline cache of another version");
    } else {
        tracing::warn!("{} is damaged and not used; it will be replaced", path.display());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{AdapterChoice, Gpu, Launch, Operand, Plan, buffer, gpu_for_tests, param};
    use crate::profile::{Cost, MemoryKind};
    use crate::shader;

    const KEY: &str = "wgpu_pipeline_cache_vulkan_1_2";

    fn file(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KEY);
        fs::write(&path, content).unwrap();
        (dir, path)
    }

    fn whole() -> Vec<u8> {
        let data = b"bytes\nof a driver";
        [first_line(KEY, data).as_bytes(), data].concat()
    }

    #[test]
    fn a_file_gives_back_what_it_keeps() {
        let (_dir, path) = file(&whole());
        assert_eq!(read(&path, KEY).unwrap(), b"bytes\nof a driver");
        let (_dir, path) = file(first_line(KEY, b"").as_bytes());
        assert_eq!(read(&path, KEY).unwrap(), b"");
    }

    #[test]
    fn a_damaged_file_is_not_used() {
        let whole = whole();
        for length in 0..whole.len() {
            let (_dir, path) = file(&whole[..length]);
            assert_eq!(read(&path, KEY), None, "{length} of {} bytes", whole.len());
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            let (_dir, path) = file(&damaged);
            assert_eq!(read(&path, KEY), None, "byte {at}");
        }
        let (_dir, path) = file(&[&whole[..], b"more"].concat());
        assert_eq!(read(&path, KEY), None);
    }

    #[test]
    fn a_file_of_another_adapter_or_version_is_not_used() {
        let (_dir, path) = file(&whole());
        assert_eq!(read(&path, "wgpu_pipeline_cache_vulkan_1_3"), None);
        let text = String::from_utf8(whole()).unwrap();
        let (_dir, path) = file(text.replace(VERSION, "rustyflow 0.0.1 ").as_bytes());
        assert_eq!(read(&path, KEY), None);
    }

    /// Fills a buffer on the GPU that tests run on, with this folder for a cache.
    fn compile_and_run(folder: &Path) {
        let choice = AdapterChoice { allow_software: true, cache: Some(folder.into()), ..AdapterChoice::default() };
        let gpu = Gpu::open(&choice).unwrap();
        let slice = gpu.alloc(12, MemoryKind::Other).unwrap();
        let launch = Launch {
            shader: shader!(fill),
            values: vec![],
            buffers: vec![buffer("x", "f32", Operand::Output(0))],
            params: vec![param("len", 3usize), param("value", 2.5)],
            workgroups: 1,
        };
        gpu.run("fill", Cost::default(), Plan::one(launch), &[], &[&slice]).unwrap();
        assert_eq!(gpu.download(&slice).unwrap(), 2.5f32.to_ne_bytes().repeat(3));
    }

    #[test]
    fn a_gpu_keeps_its_pipelines_and_survives_a_file_that_is_not_its_own() {
        let Some(gpu) = gpu_for_tests() else { return };
        if !gpu.info().features.contains(&"pipeline-cache") {
            eprintln!("SKIPPED, no pipeline caches");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        compile_and_run(dir.path());
        let files = fs::read_dir(dir.path().join("pipelines")).unwrap().map(|entry| entry.unwrap().path());
        let [path] = &files.collect::<Vec<_>>()[..] else { panic!("one file was expected") };
        let key = path.file_name().unwrap().to_str().unwrap();
        let kept = read(path, key).expect("what was written can be read");
        // Bytes that are not wgpu's, those of another adapter (its id in wgpu's header), and no file of ours at all.
        let mut foreign = kept.clone();
        foreign[20] ^= 1;
        let sealed = |data: &[u8]| [first_line(key, data).as_bytes(), data].concat();
        for content in [sealed(b"nonsense"), sealed(&foreign), b"nonsense".to_vec()] {
            fs::write(path, content).unwrap();
            compile_and_run(dir.path());
            assert_eq!(read(path, key).map(|data| data.len()), Some(kept.len()));
        }
    }
}
