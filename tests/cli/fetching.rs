//! `rustyflow fetch`: models from a hub on this machine, and their use by name.

use crate::sandbox::{Run, Sandbox, TINY_RUN};
use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const CHECKPOINT: [&str; 4] = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];

/// What the server has and how it behaves.
#[derive(Default)]
struct State {
    /// Names and contents.
    files: Vec<(String, Vec<u8>)>,
    /// Bytes after which the next weights are cut off.
    cut: Option<usize>,
    /// Every request must have this token.
    token: Option<String>,
    /// A list of files in place of the true one.
    listing: Option<String>,
    /// Status and message of every answer.
    refusal: Option<(&'static str, &'static str)>,
}

/// A hub with the model `org/tiny`.
struct Server {
    url: String,
    state: Arc<Mutex<State>>,
    requests: Arc<Mutex<Vec<String>>>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn git_id(bytes: &[u8]) -> String {
    hex(&Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".bin")
}

impl Server {
    fn start() -> (Sandbox, Server) {
        let sandbox = Sandbox::trained();
        let file = |name: &str| fs::read(sandbox.path(format!("{TINY_RUN}/checkpoints/step-000006/{name}"))).unwrap();
        let mut files: Vec<_> = CHECKPOINT.iter().map(|name| (name.to_string(), file(name))).collect();
        files.extend(["README.md", "pytorch_model.bin", "onnx/config.json"].map(|n| (n.into(), b"unneeded".to_vec())));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            url: format!("http://{}", listener.local_addr().unwrap()),
            state: Arc::new(Mutex::new(State { files, ..State::default() })),
            requests: Arc::default(),
        };
        let (state, requests) = (Arc::clone(&server.state), Arc::clone(&server.requests));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let request: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                requests.lock().unwrap().push(request.join("\n"));
                // The client may be gone already.
                let _ = state.lock().unwrap().answer(&request, &stream);
            }
        });
        (sandbox, server)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The requests since the last call.
    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    fn run(&self, sandbox: &Sandbox, args: &[&str], variables: &[(&str, &str)]) -> Run {
        let home = sandbox.path("hf").display().to_string();
        let own = [("HF_ENDPOINT", self.url.as_str()), ("HF_HOME", home.as_str())];
        let unset = ["HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"].map(|name| (name, ""));
        sandbox.run_with(args, &[&unset[..], &own, variables].concat())
    }

    fn fetch(&self, sandbox: &Sandbox, further: &[&str]) -> Run {
        self.run(sandbox, &[&["fetch", "org/tiny"], further].concat(), &[])
    }
}

impl State {
    fn answer(&mut self, request: &[String], mut stream: &TcpStream) -> std::io::Result<()> {
        let path = request[0].split(' ').nth(1).unwrap_or_default();
        let header = |name: &str| {
            let line = request.iter().find(|line| line.to_lowercase().starts_with(&format!("{name}: ")));
            line.map(|line| line[name.len() + 2..].to_string())
        };
        let mut send = |status: &str, headers: &str, length: usize, body: &[u8]| {
            let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body))
        };
        if let Some((status, message)) = self.refusal {
            return send(status, &format!("X-Error-Message: {message}\r\n"), 0, b"");
        }
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        if bearer.is_some() && header("authorization") != bearer {
            return send("401 Unauthorized", "X-Error-Message: Invalid username or password.\r\n", 0, b"");
        }
        if path == "/api/models/org/tiny/revision/main?blobs=true" {
            let body = self.listing.clone().unwrap_or_else(|| self.list());
            return send("200 OK", "", body.len(), body.as_bytes());
        }
        // Small files are elsewhere on the same server.
        let direct = path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/"));
        if let Some(name) = direct.filter(|name| !is_large(name)) {
            return send("307 Temporary Redirect", &format!("Location: /cached/{name}\r\n"), 0, b"");
        }
        let name = direct.or(path.strip_prefix("/cached/"));
        let Some((name, body)) = self.files.iter().find(|(its, _)| Some(its.as_str()) == name) else {
            return send("404 Not Found", "X-Error-Message: Repository not found\r\n", 0, b"");
        };
        let start = header("range").map_or(0, |range| range["bytes=".len()..].trim_end_matches('-').parse().unwrap());
        let cut = if is_large(name) { self.cut.take() } else { None };
        let sent = &body[start..cut.map_or(body.len(), |cut| start + cut)];
        if start > 0 {
            let range = format!("Content-Range: bytes {start}-{}/{}\r\n", body.len() - 1, body.len());
            return send("206 Partial Content", &range, body.len() - start, sent);
        }
        send("200 OK", "", body.len(), sent)
    }

    fn list(&self) -> String {
        let sibling = |(name, body): &(String, Vec<u8>)| {
            let size = body.len();
            let mut file = json!({ "rfilename": name, "size": size, "blobId": git_id(body) });
            if is_large(name) {
                file["lfs"] = json!({ "sha256": hex(&Sha256::digest(body)), "size": size, "pointerSize": 134 });
            }
            file
        };
        json!({ "sha": COMMIT, "siblings": self.files.iter().map(sibling).collect::<Vec<_>>() }).to_string()
    }

    fn weights(&mut self) -> &mut Vec<u8> {
        &mut self.files.iter_mut().find(|(name, _)| name == "model.safetensors").unwrap().1
    }
}

const SNAPSHOT: &str = "hf/hub/models--org--tiny/snapshots/0123456789abcdef0123456789abcdef01234567";
const BLOBS: &str = "hf/hub/models--org--tiny/blobs";

#[test]
fn a_model_is_fetched_once_and_used_by_its_name() {
    let (sandbox, server) = Server::start();
    let before = ["train", "--init", "org/tiny", "--corpus", "corpus.txt", "--device", "cpu", "--max-steps", "1"];
    server.run(&sandbox, &before, &[]).fails_with(&["--init: model.init", "org/tiny", "`rustyflow fetch org/tiny`"]);
    let eval = ["eval", "--model", "org/tiny", "--text", "corpus.txt", "--device", "cpu", "--json"];
    server.run(&sandbox, &eval, &[]).fails_with(&["org/tiny: is not a folder", "`rustyflow fetch org/tiny`"]);
    assert!(server.requests().is_empty(), "only fetch asks the server");

    server.fetch(&sandbox, &[]).succeeds().prints(&["org/tiny (4 files", SNAPSHOT]);
    let mut names = CHECKPOINT.to_vec();
    names.sort_unstable();
    assert_eq!(sandbox.names_in(SNAPSHOT), names);
    assert_eq!(sandbox.read("hf/hub/models--org--tiny/refs/main"), COMMIT);
    let weights = server.state().weights().clone();
    assert!(sandbox.names_in(BLOBS).contains(&hex(&Sha256::digest(&weights))));
    #[cfg(unix)]
    assert_eq!(
        fs::read_link(sandbox.path(SNAPSHOT).join("model.safetensors")).unwrap(),
        std::path::Path::new("../../blobs").join(hex(&Sha256::digest(&weights)))
    );
    server.requests();
    let told = server.fetch(&sandbox, &["--json"]).succeeds().json();
    assert_eq!((&told["commit"], &told["files"]), (&json!(COMMIT), &json!(4)));
    assert_eq!(server.requests().len(), 1, "the list alone is asked for again");

    let fetched = server.run(&sandbox, &eval, &[]).succeeds().json();
    let trained = sandbox.run(&[&eval[..1], &["--model", TINY_RUN], &eval[3..]].concat()).succeeds().json();
    assert_eq!(fetched["loss"], trained["loss"]);
    server.run(&sandbox, &before, &[]).succeeds();
    let config = sandbox.read("runs/corpus-L1-H2-E16-cpu-2/config.toml");
    assert!(config.contains(SNAPSHOT), "the commit is in the run's own file: {config}");
}

#[test]
fn a_download_goes_on_where_it_was_cut_off() {
    let (sandbox, server) = Server::start();
    server.state().cut = Some(1000);
    server.fetch(&sandbox, &[]).succeeds();
    let weights = server.state().weights().clone();
    assert_eq!(fs::read(sandbox.path(SNAPSHOT).join("model.safetensors")).unwrap(), weights);
    assert!(server.requests().iter().any(|request| request.to_lowercase().contains("range: bytes=1000-")));

    // What an earlier command left, and what another program has fetched.
    fs::remove_dir_all(sandbox.path("hf")).unwrap();
    let blob = |bytes: &[u8]| format!("{BLOBS}/{}", hex(&Sha256::digest(bytes)));
    sandbox.write(format!("{}.incomplete", blob(&weights)), &weights[..2000]);
    let config = server.state().files[0].1.clone();
    sandbox.write(format!("{BLOBS}/{}", git_id(&config)), &config);
    server.fetch(&sandbox, &[]).succeeds();
    let requests = server.requests();
    assert!(requests.iter().any(|request| request.to_lowercase().contains("range: bytes=2000-")), "{requests:?}");
    assert!(!requests.iter().any(|request| request.contains("/config.json")), "{requests:?}");
    assert_eq!(fs::read(sandbox.path(SNAPSHOT).join("model.safetensors")).unwrap(), weights);
    assert!(!sandbox.exists(format!("{}.incomplete", blob(&weights))));
}

#[test]
fn wrong_bytes_are_deleted_and_no_revision_is_named() {
    let (sandbox, server) = Server::start();
    let listing = server.state().list();
    server.state().listing = Some(listing);
    server.state().weights()[100] ^= 1;
    server.fetch(&sandbox, &[]).fails_with(&["model.safetensors", "wrong hash: expected"]);
    assert!(!sandbox.exists("hf/hub/models--org--tiny/refs/main"));
    assert!(!sandbox.names_in(SNAPSHOT).contains(&"model.safetensors".to_string()));
    assert!(sandbox.names_in(BLOBS).iter().all(|name| !name.ends_with(".incomplete")));
    server.state().weights()[100] ^= 1;
    server.fetch(&sandbox, &[]).succeeds();
}

#[test]
fn a_token_is_taken_from_the_environment_or_its_file() {
    let (sandbox, server) = Server::start();
    server.state().token = Some("hf_secret".into());
    server.fetch(&sandbox, &[]).fails_with(&["401", "Invalid username or password", "set HF_TOKEN"]);
    server.run(&sandbox, &["fetch", "org/tiny"], &[("HF_TOKEN", "hf_secret")]).succeeds();
    fs::remove_dir_all(sandbox.path("hf")).unwrap();
    sandbox.write("hf/token", "hf_secret\n");
    server.fetch(&sandbox, &[]).succeeds();
    let run = server.run(&sandbox, &["fetch", "org/tiny"], &[("HF_TOKEN", "hf_other")]);
    let run = run.fails_with(&["401"]);
    assert!(!run.stderr.contains("hf_other"), "a token is told to nobody");
}

#[test]
fn what_the_server_refuses_is_said_with_what_to_do() {
    let (sandbox, server) = Server::start();
    for (status, why, told) in [
        ("401 Unauthorized", "Invalid username or password.", "set HF_TOKEN"),
        ("403 Forbidden", "Access to model org/tiny is restricted", "accept its conditions"),
        ("404 Not Found", "Invalid rev id: main", "check the name and --revision"),
    ] {
        server.state().refusal = Some((status, why));
        server.fetch(&sandbox, &[]).fails_with(&[status, why.trim_end_matches('.'), told]);
        assert_eq!(server.requests().len(), 1, "a refusal is not asked again");
    }
    let closed = [("HF_ENDPOINT", "http://127.0.0.1:1")];
    let offline = ["(4 attempts)", "work offline", "HF_ENDPOINT"];
    server.run(&sandbox, &["fetch", "org/tiny"], &closed).fails_with(&offline);
    let offline = [("HF_HUB_OFFLINE", "1")];
    server.run(&sandbox, &["fetch", "org/tiny"], &offline).fails_with(&["HF_HUB_OFFLINE is set"]);
    let wrong = server.run(&sandbox, &["fetch", "../tiny"], &[]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("expected org/name"), "{wrong:?}");
}

#[test]
fn a_list_of_files_that_leads_out_of_the_cache_is_refused() {
    let (sandbox, server) = Server::start();
    let listing = server.state().list();
    server.state().listing = Some(listing.replace("\"tokenizer.json\"", "\"../../../tokenizer.json\""));
    server.fetch(&sandbox, &[]).fails_with(&["\"../../../tokenizer.json\"", "outside the model's folder"]);
    server.state().listing = Some(listing.replace(COMMIT, "../../elsewhere"));
    server.fetch(&sandbox, &[]).fails_with(&["returned no commit"]);
    assert!(!sandbox.exists("hf"), "nothing was written");
}

#[test]
fn patterns_choose_the_files_and_a_pickle_is_warned_of() {
    let (sandbox, server) = Server::start();
    server.fetch(&sandbox, &["--include", "*.json", "--exclude", "onnx/*", "--json"]).succeeds();
    assert_eq!(sandbox.names_in(SNAPSHOT), ["config.json", "tokenizer.json", "tokenizer_config.json"]);
    server.fetch(&sandbox, &["--include", "*.gguf"]).fails_with(&["no file of org/tiny matches", "README.md"]);
    server.state().files.retain(|(name, _)| name != "model.safetensors");
    let run = server.fetch(&sandbox, &[]).succeeds();
    assert!(run.stderr.contains("warning: its weights are a pickle"), "{run:?}");
    let eval = ["eval", "--model", "org/tiny", "--text", "corpus.txt", "--device", "cpu"];
    server.run(&sandbox, &eval, &[]).fails_with(&["pytorch_model.bin", "save_pretrained"]);
}
