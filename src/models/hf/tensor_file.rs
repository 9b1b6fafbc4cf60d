//! Writes safetensors files from where the tensors lie, with several threads.

use rayon::prelude::*;
use safetensors::tensor::{Metadata, TensorInfo, View};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::io;

/// Bytes that a thread writes at a time.
const PART: usize = 8 << 20;

/// Writes the bytes that `safetensors::serialize` makes of these tensors to a new file, and calls `each` with all of
/// them, piece by piece.
///
/// # Errors
/// If the file cannot be written.
pub fn write<V: View>(
    file: &File,
    mut tensors: Vec<(String, V)>,
    metadata: Option<HashMap<String, String>>,
    mut each: impl FnMut(&[u8]),
) -> io::Result<()> {
    // Types of more bits first, so that all data is aligned.
    tensors.sort_by(|(name, tensor), (other_name, other)| {
        (Reverse(tensor.dtype()), name).cmp(&(Reverse(other.dtype()), other_name))
    });
    let mut end = 0;
    let infos = tensors.iter().map(|(name, tensor)| {
        let start = end;
        end += tensor.data_len();
        let info = TensorInfo { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), data_offsets: (start, end) };
        (name.clone(), info)
    });
    let header = Metadata::new(metadata, infos.collect()).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut start = 0;
    let mut put = |bytes: &[u8]| {
        each(bytes);
        let parts = bytes.par_chunks(PART).enumerate();
        parts.try_for_each(|(i, part)| write_at(file, part, (start + i * PART) as u64))?;
        start += bytes.len();
        io::Result::Ok(())
    };
    put(&(header.len() as u64).to_le_bytes())?;
    put(&header)?;
    tensors.iter().try_for_each(|(_, tensor)| put(&tensor.data()))
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        (bytes, offset) = (&bytes[written..], offset + written as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::{Dtype, TensorView};

    #[test]
    fn the_file_has_the_bytes_that_safetensors_serializes() {
        // One larger than what a thread writes at a time.
        let bytes: Vec<u8> = (0..PART + 4000).map(|i| (i % 251) as u8).collect();
        let sizes =
            [("a", Dtype::F16, 6), ("b.10", Dtype::F32, PART + 4000), ("b.9", Dtype::F32, 8), ("c", Dtype::F16, 0)];
        let views = || {
            let view = |(name, dtype, size): (&str, Dtype, usize)| {
                let shape = vec![size * 8 / dtype.bitsize()];
                (name.to_string(), TensorView::new(dtype, shape, &bytes[..size]).unwrap())
            };
            sizes.map(view).to_vec()
        };
        for metadata in [None, Some(HashMap::from([("format".to_string(), "pt".to_string())]))] {
            let mut file = tempfile::tempfile().unwrap();
            let mut seen = Vec::new();
            write(&file, views(), metadata.clone(), |bytes| seen.extend_from_slice(bytes)).unwrap();
            let mut written = Vec::new();
            io::Seek::rewind(&mut file).unwrap();
            io::Read::read_to_end(&mut file, &mut written).unwrap();
            let expected = safetensors::serialize(views(), metadata).unwrap();
            assert!(written == expected && seen == expected);
        }
    }
}
