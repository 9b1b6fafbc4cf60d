//! Downloads public data sets into the data folder, and files for `hub`.
//!
//! A file is downloaded under a temporary name (`<file>.part` for data sets), checked against its published hash and
//! then renamed, so an existing file is complete. An interrupted download resumes with a `Range` request, in the same
//! call or a later one.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::Body;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;

use super::datasets::{DATASETS, Dataset, Hash};
use rustyflow_base::error::{Error, Result};

/// Attempts per file before giving up on a connection that keeps failing.
const ATTEMPTS: u32 = 4;

/// Downloads the data set `dataset` into its folder in `data_dir` and returns that folder.
///
/// Existing files with the right hash are kept, others are replaced. `base_url_override` is a mirror with the source's
/// file names. `on_progress` receives the bytes done and the total bytes of all files.
///
/// Errors: an unknown data set, no connection, an HTTP error, or a wrong hash.
pub fn fetch(
    dataset: &str,
    data_dir: &Path,
    base_url_override: Option<&str>,
    on_progress: &mut dyn FnMut(u64, Option<u64>),
) -> Result<PathBuf> {
    let found = DATASETS.iter().find(|known| known.name == dataset).ok_or_else(|| {
        let names: Vec<&str> = DATASETS.iter().map(|known| known.name).collect();
        Error::Invalid(format!("unknown data set {dataset:?}; expected one of {}", names.join(", ")))
    })?;
    fetch_dataset(found, data_dir, base_url_override, on_progress)
}

fn fetch_dataset(
    dataset: &Dataset,
    data_dir: &Path,
    base_url_override: Option<&str>,
    on_progress: &mut dyn FnMut(u64, Option<u64>),
) -> Result<PathBuf> {
    let folder = data_dir.join(dataset.name);
    std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, error))?;
    let base_url = base_url_override.unwrap_or(dataset.base_url).trim_end_matches('/');
    let total = dataset.files.iter().map(|file| file.size_bytes).sum();
    let mut before = 0;
    for file in dataset.files {
        let target = folder.join(file.local);
        if !(target.is_file() && file.hash.matches(&target)?.is_ok()) {
            let url = format!("{base_url}/{}", file.remote);
            let mut part = target.as_os_str().to_owned();
            part.push(".part");
            let (part, size_bytes, hash) = (PathBuf::from(part), file.size_bytes, file.hash);
            let download = Download { url, size_bytes, hash, part: &part, target: &target, site: &Site::default() };
            download.fetch(&mut |done| on_progress(before + done, Some(total)))?;
        }
        before += file.size_bytes;
        on_progress(before, Some(total));
    }
    Ok(folder)
}

/// Settings of a server, shared by its files.
#[derive(Default)]
pub(super) struct Site<'a> {
    /// Says who asks.
    pub(super) token: Option<&'a str>,
    /// The remedy for an HTTP status.
    pub(super) advice: Option<fn(u16) -> String>,
}

/// A file to download.
pub(super) struct Download<'a> {
    pub(super) url: String,
    pub(super) size_bytes: u64,
    pub(super) hash: Hash<'a>,
    /// Where it is written until it is complete.
    pub(super) part: &'a Path,
    pub(super) target: &'a Path,
    pub(super) site: &'a Site<'a>,
}

/// How one attempt ended short of success.
pub(super) enum Failure {
    /// A transient error: the connection failed or was interrupted, or the server is overloaded.
    Passing(String),
    /// A permanent error.
    Lasting(Error),
}

/// Tries until it succeeds, fails for good, or has failed [`ATTEMPTS`] times; then `advice` says what to do.
pub(super) fn retry<T>(
    url: &str,
    advice: &str,
    mut attempt: impl FnMut() -> std::result::Result<T, Failure>,
) -> Result<T> {
    let mut count = 1;
    loop {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(Failure::Lasting(error)) => return Err(error),
            Err(Failure::Passing(message)) if count == ATTEMPTS => {
                let message = format!("{message} ({ATTEMPTS} attempts); {advice}");
                return Err(Error::Download { url: url.to_string(), message });
            }
            Err(Failure::Passing(_)) => {
                std::thread::sleep(Duration::from_millis(250) * count);
                count += 1;
            }
        }
    }
}

impl Site<'_> {
    /// The answer to a request for `url` from byte `start` on.
    pub(super) fn get(&self, url: &str, start: u64) -> std::result::Result<Response<Body>, Failure> {
        let mut request = agent().get(url);
        if start > 0 {
            request = request.header("Range", format!("bytes={start}-"));
        }
        if let Some(token) = self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|error| Failure::Passing(error.to_string()))
    }

    /// The error for a response without the file.
    pub(super) fn refusal(&self, url: &str, response: &Response<Body>) -> Failure {
        let status = response.status();
        if matches!(status.as_u16(), 408 | 429 | 500..) {
            return Failure::Passing(format!("the server answered {status}"));
        }
        let why = response.headers().get("x-error-message").and_then(|why| why.to_str().ok());
        let why = why.map_or(String::new(), |why| format!(" ({})", why.trim_end_matches('.')));
        let advice = self.advice.map_or(String::new(), |advice| advice(status.as_u16()));
        let message = format!("the server answered {status}{why}{advice}");
        Failure::Lasting(Error::Download { url: url.to_string(), message })
    }
}

impl Download<'_> {
    /// Downloads the file, resuming from `part`.
    pub(super) fn fetch(&self, on_progress: &mut dyn FnMut(u64)) -> Result<()> {
        let Download { url, part, target, .. } = self;
        let advice = format!("run the command again to continue, or put the file at {} yourself", target.display());
        let length = || part.metadata().map_or(0, |metadata| metadata.len());
        loop {
            let before = length();
            match retry(url, &advice, || self.fetch_rest(on_progress)) {
                Ok(()) => break,
                // A long file over a connection that is cut again and again arrives all the same.
                Err(Error::Download { .. }) if length() > before => {}
                Err(error) => return Err(error),
            }
        }
        if let Err((expected, got)) = self.hash.matches(part)? {
            std::fs::remove_file(part).map_err(|error| Error::io("remove", part, error))?;
            let message =
                format!("wrong hash: expected {expected}, got {got}; the download was deleted, run the command again");
            return Err(Error::Download { url: url.clone(), message });
        }
        std::fs::rename(part, target).map_err(|error| Error::io("rename", part, error))
    }

    /// Fetches what `part` does not hold yet and appends it.
    fn fetch_rest(&self, on_progress: &mut dyn FnMut(u64)) -> std::result::Result<(), Failure> {
        let &Download { ref url, size_bytes, part, site, .. } = self;
        let discard = || std::fs::remove_file(part).map_err(|error| Failure::Lasting(Error::io("remove", part, error)));
        let mut done = part.metadata().map_or(0, |metadata| metadata.len());
        if done > size_bytes {
            discard()?;
            done = 0;
        }
        if done == size_bytes && part.is_file() {
            return Ok(());
        }
        let mut response = site.get(url, done)?;
        let status = response.status();
        let range = response.headers().get("Content-Range").and_then(|range| range.to_str().ok()).map(str::to_string);
        match status.as_u16() {
            206 if range.is_some_and(|range| range.starts_with(&format!("bytes {done}-"))) => {}
            // The whole file again, from a server that does not do ranges.
            200 if done > 0 => {
                discard()?;
                done = 0;
            }
            200 => {}
            // A range other than the one asked for: what is there cannot be continued.
            206 | 416 if done > 0 => {
                discard()?;
                return Err(Failure::Passing(format!("the server cannot continue the download ({status})")));
            }
            _ => return Err(site.refusal(url, &response)),
        }
        // One byte more than is due tells a file that is too long, without filling the disk with it.
        let body = response.body_mut().as_reader().take(size_bytes - done + 1);
        append(body, part, done, size_bytes, on_progress)
    }
}

/// Appends `body` to `part`, which has `done` bytes of the `size_bytes` that it shall have.
fn append(
    mut body: impl Read,
    part: &Path,
    mut done: u64,
    size_bytes: u64,
    on_progress: &mut dyn FnMut(u64),
) -> std::result::Result<(), Failure> {
    let write = |error| Failure::Lasting(Error::io("write", part, error));
    let mut output = OpenOptions::new().create(true).append(true).open(part).map_err(write)?;
    let mut buffer = [0; 1 << 16];
    loop {
        match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                output.write_all(&buffer[..count]).map_err(write)?;
                done += count as u64;
                on_progress(done.min(size_bytes));
            }
            Err(error) => return Err(Failure::Passing(format!("interrupted after {done} bytes: {error}"))),
        }
    }
    if done < size_bytes {
        return Err(Failure::Passing(format!("interrupted after {done} of {size_bytes} bytes")));
    }
    Ok(())
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(20)))
        .timeout_recv_response(Some(Duration::from_secs(30)))
        // Against a connection that hangs; a slow one that still delivers is not cut.
        .timeout_per_read(Some(Duration::from_secs(30)))
        // To a link of the same server, and never to the storage that it may lead to.
        .redirect_auth_headers(RedirectAuthHeaders::SameHost)
        .user_agent(concat!("rustyflow/", env!("CARGO_PKG_VERSION")))
        .build()
        .new_agent()
}

#[cfg(test)]
mod tests {
    use super::super::datasets::RemoteFile;
    use super::*;
    use sha2::{Digest, Sha256};
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Mutex};
    use tempfile::tempdir;

    const CONTENT: &[u8] = b"It was the best of times, it was the worst of times.";

    /// One file, under both kinds of hash.
    const TALES: Dataset = Dataset {
        name: "tales",
        about: "",
        base_url: "http://127.0.0.1:1",
        files: &[RemoteFile {
            remote: "dickens.txt",
            local: "two-cities.txt",
            size_bytes: CONTENT.len() as u64,
            hash: Hash::Sha256("38d141b35057bbb691b9756c20a6c31a0ab0bbf2076538a7fb6d9ee8835096d7"),
        }],
    };
    const GIT_TALES: Dataset = Dataset {
        files: &[RemoteFile {
            remote: "dickens.txt",
            local: "two-cities.txt",
            size_bytes: CONTENT.len() as u64,
            hash: Hash::GitBlob("32ae2e74bc7250639e2771aee5ff5b2f34fb3832"),
        }],
        ..TALES
    };

    /// A server on this machine that answers its n-th request with the n-th answer, and keeps the requests.
    struct Server {
        url: String,
        requests: Arc<Mutex<Vec<String>>>,
    }

    impl Server {
        fn start(answers: Vec<Vec<u8>>) -> Server {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let requests = Arc::new(Mutex::new(vec![]));
            let seen = Arc::clone(&requests);
            std::thread::spawn(move || {
                for answer in answers {
                    let (stream, _) = listener.accept().unwrap();
                    seen.lock().unwrap().push(read_request(&stream));
                    // The client may be gone already.
                    let _ = (&stream).write_all(&answer);
                }
            });
            Server { url, requests }
        }

        fn requests(&self) -> Vec<String> {
            self.requests.lock().unwrap().clone()
        }
    }

    fn read_request(stream: &TcpStream) -> String {
        BufReader::new(stream).lines().map(|line| line.unwrap() + "\n").take_while(|line| line != "\n").collect()
    }

    /// An answer that announces `announced` bytes and sends `body`.
    fn answer(status: &str, headers: &str, announced: usize, body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {announced}\r\n{headers}\r\n");
        [head.as_bytes(), body].concat()
    }

    fn whole() -> Vec<u8> {
        answer("200 OK", "", CONTENT.len(), CONTENT)
    }

    fn cut_off_at(length: usize) -> Vec<u8> {
        answer("200 OK", "", CONTENT.len(), &CONTENT[..length])
    }

    fn rest_from(start: usize) -> Vec<u8> {
        let range = format!("Content-Range: bytes {start}-{}/{}\r\n", CONTENT.len() - 1, CONTENT.len());
        answer("206 Partial Content", &range, CONTENT.len() - start, &CONTENT[start..])
    }

    fn fetch_from(server: &Server, data_dir: &Path) -> Result<PathBuf> {
        fetch_dataset(&TALES, data_dir, Some(&server.url), &mut |_, _| {})
    }

    fn part(dir: &Path) -> PathBuf {
        dir.join("tales").join("two-cities.txt.part")
    }

    fn assert_complete(dir: &Path) {
        assert_eq!(std::fs::read(dir.join("tales").join("two-cities.txt")).unwrap(), CONTENT);
        assert!(!part(dir).exists());
    }

    #[test]
    fn fetches_a_file_under_its_local_name() {
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![whole()]));
        assert_eq!(fetch_from(&server, dir.path()).unwrap(), dir.path().join("tales"));
        assert_complete(dir.path());
        assert!(server.requests()[0].starts_with("GET /dickens.txt "));
    }

    #[test]
    fn checks_git_blob_ids() {
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![whole()]));
        fetch_dataset(&GIT_TALES, dir.path(), Some(&server.url), &mut |_, _| {}).unwrap();
        assert_complete(dir.path());
    }

    #[test]
    fn reports_progress_up_to_the_total() {
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![cut_off_at(10), rest_from(10)]));
        let mut reports = vec![];
        fetch_dataset(&TALES, dir.path(), Some(&server.url), &mut |done, total| reports.push((done, total))).unwrap();
        let total = CONTENT.len() as u64;
        assert!(reports.is_sorted() && reports.iter().all(|report| report.1 == Some(total)), "{reports:?}");
        assert_eq!(reports.last(), Some(&(total, Some(total))));
    }

    #[test]
    fn resumes_where_it_was_cut_off() {
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![cut_off_at(20), rest_from(20)]));
        fetch_from(&server, dir.path()).unwrap();
        assert_complete(dir.path());
        assert!(server.requests()[1].to_lowercase().contains("range: bytes=20-\n"), "{:?}", server.requests());
    }

    #[test]
    fn resumes_what_an_earlier_run_left() {
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![rest_from(30)]));
        std::fs::create_dir_all(dir.path().join("tales")).unwrap();
        std::fs::write(part(dir.path()), &CONTENT[..30]).unwrap();
        fetch_from(&server, dir.path()).unwrap();
        assert_complete(dir.path());
    }

    #[test]
    fn starts_over_if_the_server_ignores_the_range() {
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![cut_off_at(20), whole()]));
        fetch_from(&server, dir.path()).unwrap();
        assert_complete(dir.path());
    }

    #[test]
    fn starts_over_if_the_server_sends_another_range() {
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![cut_off_at(20), rest_from(5), whole()]));
        fetch_from(&server, dir.path()).unwrap();
        assert_complete(dir.path());
    }

    #[test]
    #[ignore = "slow: scripts/test.sh --full"]
    fn gives_up_after_several_cuts_and_keeps_what_it_has() {
        let nothing = answer("206 Partial Content", "Content-Range: bytes 20-51/52\r\n", 32, b"");
        // Four attempts, of which the first brought something, and four that brought nothing.
        let answers = [vec![cut_off_at(20)], vec![nothing; 7]].concat();
        let (dir, server) = (tempdir().unwrap(), Server::start(answers));
        let error = fetch_from(&server, dir.path()).unwrap_err().to_string();
        assert!(error.contains("interrupted after 20") && error.contains("4 attempts"), "{error}");
        assert_eq!(std::fs::read(part(dir.path())).unwrap(), &CONTENT[..20]);
    }

    #[test]
    fn goes_on_for_as_long_as_something_arrives() {
        let ten_from = |start| {
            let mut answer = rest_from(start);
            answer.truncate(answer.len() - (CONTENT.len() - start - 10));
            answer
        };
        let answers = vec![cut_off_at(10), ten_from(10), ten_from(20), ten_from(30), ten_from(40), rest_from(50)];
        let (dir, server) = (tempdir().unwrap(), Server::start(answers));
        fetch_from(&server, dir.path()).unwrap();
        assert_complete(dir.path());
        assert_eq!(server.requests().len(), 6);
    }

    #[test]
    fn wrong_bytes_are_reported_and_deleted() {
        let wrong = CONTENT.to_ascii_uppercase();
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![answer("200 OK", "", wrong.len(), &wrong)]));
        let error = fetch_from(&server, dir.path()).unwrap_err().to_string();
        let Hash::Sha256(expected) = TALES.files[0].hash else { unreachable!() };
        let got: String = Sha256::digest(&wrong).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(error.contains(expected) && error.contains(&got), "{error}");
        assert!(!part(dir.path()).exists() && !dir.path().join("tales").join("two-cities.txt").exists());
    }

    #[test]
    fn a_file_that_is_too_long_is_wrong() {
        let long = CONTENT.repeat(100_000);
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![answer("200 OK", "", long.len(), &long)]));
        assert!(fetch_from(&server, dir.path()).unwrap_err().to_string().contains("wrong hash"));
    }

    #[test]
    fn a_missing_file_is_not_tried_again() {
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![answer("404 Not Found", "", 4, b"gone")]));
        let error = fetch_from(&server, dir.path()).unwrap_err().to_string();
        assert!(error.contains("404") && error.contains("/dickens.txt"), "{error}");
        assert_eq!(server.requests().len(), 1);
        assert!(!part(dir.path()).exists());
    }

    #[test]
    fn an_overloaded_server_is_tried_again() {
        let busy = answer("503 Service Unavailable", "", 4, b"busy");
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![busy, whole()]));
        fetch_from(&server, dir.path()).unwrap();
        assert_complete(dir.path());
    }

    #[test]
    fn what_is_there_and_correct_is_not_fetched() {
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![]));
        std::fs::create_dir_all(dir.path().join("tales")).unwrap();
        std::fs::write(dir.path().join("tales").join("two-cities.txt"), CONTENT).unwrap();
        fetch_from(&server, dir.path()).unwrap();
        assert!(server.requests().is_empty());
    }

    #[test]
    fn what_is_there_and_wrong_is_replaced() {
        let (dir, server) = (tempdir().unwrap(), Server::start(vec![whole()]));
        std::fs::create_dir_all(dir.path().join("tales")).unwrap();
        std::fs::write(dir.path().join("tales").join("two-cities.txt"), b"half a ta").unwrap();
        fetch_from(&server, dir.path()).unwrap();
        assert_complete(dir.path());
    }

    #[test]
    fn an_unknown_data_set_lists_the_known_ones() {
        let error = fetch("wikitext", Path::new("data"), None, &mut |_, _| {}).unwrap_err().to_string();
        assert!(error.contains("\"wikitext\"") && error.contains("wikitext-2, tinyshakespeare, gpt2"), "{error}");
    }
}
