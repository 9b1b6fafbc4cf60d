//! Lists a model on the Hub: the commit of a revision, and its files with sizes and hashes.

use super::escaped;
use crate::datasets::Hash;
use crate::download::{Failure, Site, retry};
use rustyflow_base::error::{Error, Result};
use rustyflow_base::hub_cache::{ModelName, is_hash, is_inside};
use serde::Deserialize;

/// Bytes that a file may have: more than any disk, and so few that sums of them are numbers.
const MOST_BYTES: u64 = 1 << 50;

/// The files of a commit.
#[derive(Debug)]
pub struct Listing {
    pub commit: String,
    pub files: Vec<RemoteFile>,
}

/// A file of a commit.
#[derive(Debug)]
pub struct RemoteFile {
    pub name: String,
    pub size_bytes: u64,
    /// Name of its blob, which is its hash.
    pub etag: String,
}

impl RemoteFile {
    /// SHA-256 of a large file, the git blob id of others.
    pub fn hash(&self) -> Hash<'_> {
        if self.etag.len() == 64 { Hash::Sha256(&self.etag) } else { Hash::GitBlob(&self.etag) }
    }
}

/// The answer to `api/models/<name>/revision/<revision>?blobs=true`.
#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Large>,
}

/// A file that git holds only a pointer to.
#[derive(Deserialize)]
struct Large {
    sha256: String,
    size: u64,
}

/// Requests the file list of a revision.
///
/// # Errors
/// If there is no such model or revision, it may not be read, or the server cannot be reached.
pub fn list(endpoint: &str, site: &Site, model: &ModelName, revision: &str) -> Result<Listing> {
    let url = format!("{endpoint}/api/models/{model}/revision/{}?blobs=true", escaped(revision, ""));
    let advice = "models fetched before work offline; HF_ENDPOINT sets another server";
    let text = retry(&url, advice, || {
        let mut response = site.get(&url, 0)?;
        if response.status().as_u16() != 200 {
            return Err(site.refusal(&url, &response));
        }
        // Models of a thousand shards have lists of a few hundred kilobytes; this ends at ten megabytes.
        response.body_mut().read_to_string().map_err(|error| Failure::Passing(error.to_string()))
    })?;
    parse(&text).map_err(|message| Error::Download { url, message })
}

/// Reads the answer, and trusts no name in it.
fn parse(text: &str) -> std::result::Result<Listing, String> {
    let answer: Answer =
        serde_json::from_str(text).map_err(|e| format!("the server's list of files cannot be read: {e}"))?;
    if !is_hash(&answer.sha, 40) {
        return Err(format!("the server returned no commit: {:?}", answer.sha));
    }
    let files = answer.siblings.into_iter().map(|sibling| {
        let name = sibling.rfilename;
        if !is_inside(&name) {
            return Err(format!("the server lists a file {name:?} outside the model's folder"));
        }
        let (size, etag, digits) = match sibling.lfs {
            Some(large) => (Some(large.size), Some(large.sha256), 64),
            None => (sibling.size, sibling.blob_id, 40),
        };
        match (size.filter(|size| *size <= MOST_BYTES), etag.filter(|etag| is_hash(etag, digits))) {
            (Some(size_bytes), Some(etag)) => Ok(RemoteFile { name, size_bytes, etag }),
            _ => Err(format!("the server's list has no size or hash of {name:?}")),
        }
    });
    Ok(Listing { commit: answer.sha, files: files.collect::<std::result::Result<_, String>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn large_files_have_another_hash() {
        let sha256 = "ab".repeat(32);
        let answer = json!({ "sha": COMMIT, "siblings": [
            { "rfilename": "config.json", "size": 3, "blobId": COMMIT },
            { "rfilename": "onnx/model.bin", "size": 9, "blobId": COMMIT, "lfs": { "sha256": sha256, "size": 9 } },
        ] });
        let listing = parse(&answer.to_string()).unwrap();
        assert!(matches!(listing.files[0].hash(), Hash::GitBlob(COMMIT)));
        assert!(matches!(listing.files[1].hash(), Hash::Sha256(hash) if hash == sha256));
    }

    #[test]
    fn a_list_that_leads_elsewhere_is_refused() {
        let file = |name: &str, id: &str| json!([{ "rfilename": name, "size": 3, "blobId": id }]);
        for (sha, siblings, told) in [
            ("../..", json!([]), "returned no commit"),
            (COMMIT, file("../config.json", COMMIT), "outside the model's folder"),
            (COMMIT, file("/etc/passwd", COMMIT), "outside the model's folder"),
            (COMMIT, file("a\\..\\b", COMMIT), "outside the model's folder"),
            (COMMIT, file("config.json", "../../x"), "no size or hash of \"config.json\""),
            (COMMIT, json!([{ "rfilename": "a", "size": u64::MAX, "blobId": COMMIT }]), "no size or hash of \"a\""),
            (COMMIT, json!([{ "rfilename": "config.json" }]), "no size or hash of \"config.json\""),
            (COMMIT, json!(3), "cannot be read"),
        ] {
            let error = parse(&json!({ "sha": sha, "siblings": siblings }).to_string()).unwrap_err();
            assert!(error.contains(told), "{error:?} lacks {told:?}");
        }
    }
}
