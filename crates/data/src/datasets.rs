//! Public data sets for download, with the hashes of their files.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use rustyflow_base::cache::hex;
use rustyflow_base::error::{Error, Result};

/// A data set for download.
#[derive(Debug)]
pub struct Dataset {
    /// Its name; also its folder in the data folder.
    pub name: &'static str,
    /// One line: contents, author, licence.
    pub about: &'static str,
    pub(super) base_url: &'static str,
    pub(super) files: &'static [RemoteFile],
}

#[derive(Debug)]
pub(super) struct RemoteFile {
    /// Name at the source, below the base URL.
    pub(super) remote: &'static str,
    /// Name in the data set's folder.
    pub(super) local: &'static str,
    pub(super) size_bytes: u64,
    pub(super) hash: Hash<'static>,
}

/// The published hash of a file, in hexadecimal.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hash<'a> {
    Sha256(&'a str),
    /// The git blob id: SHA-1 of `blob <length>\0` and the bytes.
    GitBlob(&'a str),
}

/// All data sets of [`fetch`](super::fetch).
pub const DATASETS: &[Dataset] = &[
    Dataset {
        name: "wikitext-2",
        about: "WikiText-2 (Merity et al. 2016): 2 million words of good Wikipedia articles, CC BY-SA",
        base_url: "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2",
        files: &[
            RemoteFile {
                remote: "train.txt",
                local: "train.txt",
                size_bytes: 10_797_148,
                hash: Hash::GitBlob("2d84b35af79e411d73ea7cae83c73964c6ac83b4"),
            },
            RemoteFile {
                remote: "valid.txt",
                local: "valid.txt",
                size_bytes: 1_121_681,
                hash: Hash::GitBlob("eec944eb2d9e46061cd34a6913528797db6842fc"),
            },
            RemoteFile {
                remote: "test.txt",
                local: "test.txt",
                size_bytes: 1_256_449,
                hash: Hash::GitBlob("6f3fc88e4cd88456ea892971f9f12243e8428624"),
            },
        ],
    },
    Dataset {
        name: "tinyshakespeare",
        about: "Tiny Shakespeare (Karpathy 2015): 1 MB of Shakespeare's plays, public domain",
        base_url: "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare",
        files: &[RemoteFile {
            remote: "input.txt",
            local: "input.txt",
            size_bytes: 1_115_394,
            hash: Hash::Sha256("86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),
        }],
    },
    Dataset {
        name: "gpt2",
        about: "GPT-2's tokenizer (Radford et al. 2019): 50,257 byte-level BPE tokens, MIT",
        base_url: "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main",
        files: &[
            RemoteFile {
                remote: "encoder.json",
                local: "vocab.json",
                size_bytes: 1_042_301,
                hash: Hash::Sha256("196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
            },
            RemoteFile {
                remote: "vocab.bpe",
                local: "merges.txt",
                size_bytes: 456_318,
                hash: Hash::Sha256("1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
            },
        ],
    },
];

impl<'a> Hash<'a> {
    /// Whether the file has this hash: `Ok(Err((expected, got)))` if not.
    pub(super) fn matches(self, path: &Path) -> Result<std::result::Result<(), (&'a str, String)>> {
        let read = |error| Error::io("read", path, error);
        let file = File::open(path).map_err(read)?;
        let size = file.metadata().map_err(read)?.len();
        let (expected, got) = match self {
            Hash::Sha256(expected) => (expected, digest(Sha256::new(), file).map_err(read)?),
            Hash::GitBlob(expected) => {
                (expected, digest(Sha1::new().chain_update(format!("blob {size}\0")), file).map_err(read)?)
            }
        };
        Ok(if got == expected { Ok(()) } else { Err((expected, got)) })
    }
}

/// Feeds the whole file to `hasher` and returns the hash in hexadecimal.
fn digest(mut hasher: impl Digest, file: File) -> std::io::Result<String> {
    let mut reader = BufReader::new(file);
    let mut buffer = [0; 1 << 16];
    loop {
        match reader.read(&mut buffer)? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        }
    }
    Ok(hex(&hasher.finalize()))
}
