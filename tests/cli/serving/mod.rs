//! `rustyflow serve`: a server on a small model, and plain HTTP.

mod load;
mod protocol;
mod tools;

use crate::sandbox::{Run, Sandbox, TINY};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";

/// With models of all printable characters, which hardly know what they say: `runs/llama`, of a context of 256, and
/// `runs/lstm`, whose texts may be of any length.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let printable: String = (' '..='~').chain(['\n', 'é']).collect();
    sandbox.write("corpus.txt", printable.repeat(60));
    sandbox.write("mine.jinja", TEMPLATE);
    sandbox.write("tiny.toml", TINY.replace("block_size = 16", "block_size = 256"));
    for (kind, name) in [("llama", "llama"), ("lstm", "lstm")] {
        let kind = format!("model.kind={kind}");
        let args = ["--set", &kind, "--name", name, "--max-steps", "2", "--set", "train.batch_size=1"];
        sandbox.train(&[&args[..], &["--set", "model.n_embd=32"]].concat()).succeeds();
    }
    sandbox
}

/// A server that runs, and its address.
struct Server {
    process: Child,
    address: String,
    name: String,
}

/// An answer: its status, its headers in lower case, and its body.
struct Answer {
    status: u16,
    headers: String,
    body: String,
}

impl Answer {
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The answer of a request that succeeded.
    #[track_caller]
    fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// Checks OpenAI's error object.
    #[track_caller]
    fn fails_with(&self, status: u16, part: &str) {
        assert_eq!(self.status, status, "{}", self.body);
        let error = &self.json()["error"];
        assert!(error["message"].as_str().unwrap().contains(part), "{part:?} is missing in {error}");
        assert!(error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some(), "{error}");
    }

    /// The data of its events.
    fn events(&self) -> Vec<&str> {
        self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }
}

impl Server {
    fn start(sandbox: &Sandbox, model: &str, further: &[&str]) -> Server {
        let args = ["serve", "--model", model, "--port", "0", "--chat-template", "mine.jinja"];
        let device = if further.contains(&"--device") { &[][..] } else { &["--device", "cpu", "--threads", "1"] };
        let mut command = sandbox.command(&[&args[..], device, further].concat());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let Some((name, address)) = line.trim_end().split_once(": listening on http://") else {
            panic!("{line:?}: {:?}", process.wait_with_output());
        };
        let (name, address) = (name.to_string(), address.to_string());
        Server { process, address, name }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends a request, of which the connection may be read on.
    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        let (host, length) = (&self.address, body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}");
        stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes()).unwrap();
        stream
    }

    fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        answer(self.send(method, path, headers, body))
    }

    fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "", "")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, "", &body.to_string())
    }

    /// A line of `/metrics`.
    fn metric(&self, name: &str) -> f64 {
        let body = self.get("/metrics").body;
        let line = body.lines().find_map(|line| line.strip_prefix(&format!("rustyflow_{name} ")));
        line.unwrap_or_else(|| panic!("{name} is missing in {body}")).parse().unwrap()
    }

    fn wait_for(&self, what: &str, is_so: impl Fn() -> bool) {
        let started = Instant::now();
        while !is_so() {
            assert!(started.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap().success());
    }

    /// Stops it; it ends in good order.
    fn stop(mut self) -> Run {
        self.signal("-TERM");
        let mut stdout = String::new();
        self.process.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        let mut stderr = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let run = Run { code: self.process.wait().unwrap().code(), stdout, stderr };
        assert!(run.code == Some(0) && !run.stderr.contains("panicked"), "{run:#?}");
        run
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended, unless a test failed.
        let _ = self.process.kill();
        if std::thread::panicking() {
            let mut stderr = String::new();
            self.process.stderr.take().into_iter().for_each(|mut pipe| drop(pipe.read_to_string(&mut stderr)));
            eprintln!("{stderr}");
        }
    }
}

fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = vec![];
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).expect("it is UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let headers = head.to_ascii_lowercase();
    let body = if headers.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_string() };
    Answer { status, headers, body }
}

fn unchunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        out.push_str(&rest[..length]);
        body = &rest[length + 2..];
    }
    out
}

/// A conversation of one message, with these further fields.
fn chat(content: &str, further: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 20});
    body.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    body
}
