//! Texts that share the device, clients that leave or do not read, and a server that stops.

use super::{Server, answer, sandbox};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Requests of every kind. Some take as long as ten others.
fn mixed_requests() -> Vec<(&'static str, Value)> {
    let request = |i: usize| {
        let text: String = (0..i * 11 % 190 + 1).map(|j| char::from(b'a' + ((i + j * j) % 26) as u8)).collect();
        let mut body = json!({"max_tokens": 5 + i * 13 % 50, "seed": i, "logprobs": 1});
        let further = match i % 5 {
            0 => json!({"temperature": 0}),
            1 => json!({"top_p": 0.8, "top_k": 30}),
            2 => json!({"repetition_penalty": 1.3, "min_p": 0.01}),
            3 => json!({"frequency_penalty": 0.5, "presence_penalty": 0.7}),
            _ => json!({"logit_bias": {"3": 2.5}, "n": 2}),
        };
        body.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        if i.is_multiple_of(3) {
            body["messages"] = json!([{"role": "user", "content": text}]);
            body["logprobs"] = true.into();
            return ("/v1/chat/completions", body);
        }
        body["prompt"] = text.into();
        body["echo"] = (i % 4 == 1).into();
        ("/v1/completions", body)
    };
    (0..16).map(request).collect()
}

/// Each of the requests alone, and all at once, twice: texts and log-probabilities are the same to the bit.
fn texts_under_load_are_those_alone(model: &str, flags: &[&str]) {
    let sandbox = sandbox();
    let server = Server::start(&sandbox, model, &[&["--slots", "5"], flags].concat());
    let choices = |(path, body): &(&str, Value)| server.post(path, body).ok()["choices"].clone();
    let requests = mixed_requests();
    let alone: Vec<Value> = requests.iter().map(choices).collect();
    for _ in 0..2 {
        let together: Vec<Value> = std::thread::scope(|scope| {
            let threads: Vec<_> = requests.iter().map(|request| scope.spawn(|| choices(request))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (i, (alone, together)) in alone.iter().zip(&together).enumerate() {
            assert_eq!(alone, together, "request {i}: {}", requests[i].1);
        }
    }
    assert!(server.metric("steps_total") > 0.0);
    server.stop();
}

#[test]
fn texts_under_load_are_those_alone_on_the_cpu() {
    texts_under_load_are_those_alone("llama", &["--device", "cpu", "--threads", "2"]);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn texts_under_load_are_those_alone_of_other_models_and_devices() {
    let gpu = ["--device", "gpu", "--allow-software-gpu"];
    texts_under_load_are_those_alone("llama", &gpu);
    texts_under_load_are_those_alone("lstm", &["--device", "cpu", "--context", "300"]);
    texts_under_load_are_those_alone("llama", &["--device", "cpu", "--dtype", "q8_0"]);
}

#[test]
fn a_seed_gives_the_text_that_generate_gives() {
    let sandbox = sandbox();
    let args = ["generate", "--model", "llama", "--device", "cpu", "--seed", "7", "-n", "30", "-t", "1", "--json"];
    let generated = sandbox.run(&[&args[..], &["-p", "abc"]].concat()).succeeds().json();
    let server = Server::start(&sandbox, "llama", &[]);
    let body = json!({"prompt": "abc", "echo": true, "seed": 7, "max_tokens": 30});
    assert_eq!(server.post("/v1/completions", &body).ok()["choices"][0]["text"], generated["text"]);
    server.stop();
}

#[test]
fn a_prompt_is_not_computed_again() {
    let sandbox = sandbox();
    let server = Server::start(&sandbox, "llama", &["--slots", "2"]);
    let prompt = "abc ".repeat(40);
    let body = json!({"prompt": prompt, "seed": 1, "max_tokens": 5});
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let first = server.post("/v1/completions", &body).ok();
    let second = server.post("/v1/completions", &body).ok();
    assert_eq!((cached(&first), cached(&second)), (0, 128), "a whole chunk");
    assert_eq!(first["choices"], second["choices"]);
    server.stop();
}

/// A text of an LSTM that would take hours, streamed; its first event has arrived.
fn endless(server: &Server) -> BufReader<TcpStream> {
    let body = json!({"prompt": "a", "max_tokens": 1_000_000_000, "stream": true}).to_string();
    let mut reader = BufReader::new(server.send("POST", "/v1/completions", "", &body));
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "it ended");
    }
    reader
}

const ENDLESS: [&str; 6] = ["--context", "2000000000", "--slots", "1", "--queue", "1"];

#[test]
fn texts_of_clients_that_left_end_and_a_full_queue_refuses() {
    let sandbox = sandbox();
    let server = Server::start(&sandbox, "lstm", &ENDLESS);
    let running = endless(&server);
    let short = json!({"prompt": "a", "max_tokens": 3});
    let waiting = server.send("POST", "/v1/completions", "", &short.to_string());
    server.wait_for("the second waits", || server.metric("queued_texts") == 1.0);
    let refused = server.post("/v1/completions", &short);
    refused.fails_with(429, "--slots");
    assert!(refused.headers.contains("retry-after: 1"), "{}", refused.headers);
    drop(running);
    // Within a step, so that the one that waits gets the slot.
    assert_eq!(answer(waiting).ok()["usage"]["completion_tokens"], 3);
    server.wait_for("the first was cancelled", || server.metric("cancelled_texts_total") == 1.0);
    // Of those that left while they waited, none keeps the place.
    let running = endless(&server);
    for _ in 0..5 {
        drop(server.send("POST", "/v1/completions", "", &short.to_string()));
    }
    server.wait_for("a place is free", || {
        let stream = server.send("POST", "/v1/completions", "", &short.to_string());
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut status = [0; 12];
        // No answer yet: it waits.
        (&stream).read_exact(&mut status).is_err()
    });
    drop(running);
    server.wait_for("nothing runs", || server.metric("busy_slots") == 0.0);
    server.stop();
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_client_that_does_not_read_loses_its_slot() {
    let sandbox = sandbox();
    let server = Server::start(&sandbox, "lstm", &ENDLESS);
    let running = endless(&server);
    let started = Instant::now();
    let short = json!({"prompt": "a", "max_tokens": 3});
    assert_eq!(server.post("/v1/completions", &short).status, 200);
    assert!(started.elapsed() > Duration::from_secs(5));
    drop(running);
    server.stop();
}

#[test]
fn a_server_that_is_stopped_completes_what_it_accepted() {
    let sandbox = sandbox();
    let server = Server::start(&sandbox, "lstm", &["--context", "100000", "--slots", "1"]);
    let body = json!({"prompt": "a", "max_tokens": 3000}).to_string();
    let [running, waiting] = [0; 2].map(|_| server.send("POST", "/v1/completions", "", &body));
    server.wait_for("both were accepted", || server.metric("queued_texts") == 1.0);
    server.signal("-TERM");
    server.wait_for("it refuses", || {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        answer(stream).status == 503
    });
    let refused = server.post("/v1/completions", &json!({"prompt": "a"}));
    refused.fails_with(503, "stopping");
    for stream in [running, waiting] {
        assert_eq!(answer(stream).ok()["usage"]["completion_tokens"], 3000);
    }
    let mut server = server;
    assert_eq!(server.process.wait().unwrap().code(), Some(0));
}
