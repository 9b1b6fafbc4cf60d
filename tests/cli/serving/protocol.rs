//! OpenAI's protocol: answers, streams, log-probabilities and errors.

use super::{Server, answer, chat, sandbox};
use crate::sandbox::Sandbox;
use base64::prelude::{BASE64_STANDARD, Engine};
use rustyflow::data::TextConventions;
use rustyflow::models::{LanguageModel, Past};
use rustyflow::nn::Dropout;
use serde_json::{Value, json};
use std::io::Write;

/// The model that is served, on the CPU.
fn model(sandbox: &Sandbox) -> (Box<dyn LanguageModel>, TextConventions) {
    let folder = rustyflow::train::find_model(&sandbox.path("runs/llama"), &|_| {}).unwrap();
    rustyflow::train::load_model("f32".parse().unwrap(), &folder, &rustyflow::Device::Cpu).unwrap()
}

#[test]
fn chats_and_completions_follow_the_protocol() {
    let sandbox = sandbox();
    let server = Server::start(&sandbox, "llama", &["--name", "tiny"]);
    assert_eq!(server.name, "tiny");
    assert_eq!(server.get("/health").ok(), json!({"status": "ok"}));
    for path in ["/models", "/v1/models"] {
        let models = server.get(path).ok();
        assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("tiny")));
        assert_eq!(models["data"][0]["max_model_len"], 256);
    }
    assert_eq!(server.get("/v1/models/tiny").ok()["object"], "model");
    let page = server.get("/");
    assert!(page.status == 200 && page.body.starts_with("<!doctype html>"), "{}", page.body);
    assert!(page.headers.contains("content-security-policy: default-src 'none'"), "{}", page.headers);

    let body = chat("hello", &json!({"seed": 3, "n": 2, "stop": ["Q", "zz"], "user": "ignored", "model": "tiny"}));
    let answer = server.post("/v1/chat/completions", &body).ok();
    assert_eq!(answer, {
        let mut again = server.post("/chat/completions", &body).ok();
        again["id"] = answer["id"].clone();
        again["created"] = answer["created"].clone();
        again
    });
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!("tiny")));
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    assert_ne!(choices[0]["message"], choices[1]["message"], "each has a seed of its own");
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens"], "<user>hello\n<assistant>".len());
    assert_eq!(
        usage["total_tokens"],
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap()
    );

    // Text parts are one text; the rendered conversation is what completions continue.
    let parts = json!([{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]);
    let greedy = json!({"temperature": 0, "stop": "\n"});
    let mut by_parts = chat("hello", &greedy);
    by_parts["messages"][0]["content"] = parts;
    let text = |answer: &Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_string();
    let plain = text(&server.post("/v1/chat/completions", &chat("hello", &greedy)).ok());
    assert_eq!(text(&server.post("/v1/chat/completions", &by_parts).ok()), plain);
    let completion = json!({"prompt": "<user>hello\n<assistant>", "max_tokens": 20, "temperature": 0, "stop": "\n"});
    let completion = server.post("/v1/completions", &completion).ok();
    assert_eq!((&completion["choices"][0]["text"], &completion["object"]), (&json!(plain), &json!("text_completion")));

    let info = server.get("/tokenizer_info").ok();
    assert_eq!((info.get("eos_token"), &info["chat_template"]), (Some(&Value::Null), &json!(super::TEMPLATE)));
    let ids = server.post("/tokenize", &json!({"content": "hé\n"})).ok()["tokens"].clone();
    assert_eq!(ids.as_array().unwrap().len(), 3);
    assert_eq!(server.post("/v1/detokenize", &json!({"tokens": ids})).ok()["content"], "hé\n");
    // Several prompts, as texts and as tokens.
    let many = json!({"prompt": ["ab", "cd"], "n": 2, "max_tokens": 3, "echo": true});
    let many = server.post("/v1/completions", &many).ok();
    let texts: Vec<&str> = many["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert!(texts.len() == 4 && texts[0].starts_with("ab") && texts[2].starts_with("cd"), "{texts:?}");
    assert_eq!(many["usage"]["prompt_tokens"], 4);
    let equal = json!({"prompt": ["ab", "ab"], "max_tokens": 20, "temperature": 5});
    let equal = server.post("/v1/completions", &equal).ok();
    assert_ne!(equal["choices"][0]["text"], equal["choices"][1]["text"], "each has a seed of its own");
    let by_ids = server.post("/v1/completions", &json!({"prompt": [[1, 2], [3]], "max_tokens": 0, "echo": true})).ok();
    assert_eq!(by_ids["choices"][1]["finish_reason"], "length");
    assert_eq!(by_ids["usage"]["completion_tokens"], 0);
    assert!(server.metric("requests_total{path=\"/chat/completions\",status=\"200\"}") >= 4.0);
    let run = server.stop();
    assert!(run.stderr.contains("finishing the accepted requests"), "{run:?}");
}

#[test]
fn a_stream_has_the_events_that_clients_expect() {
    let sandbox = sandbox();
    let server = Server::start(&sandbox, "llama", &[]);
    let further = json!({"seed": 5, "max_tokens": 6, "stream": true, "stream_options": {"include_usage": true},
        "logit_bias": {}, "stop": null});
    let whole = server.post("/v1/chat/completions", &chat("a", &json!({"seed": 5, "max_tokens": 6}))).ok();
    let answer = server.post("/v1/chat/completions", &chat("a", &further));
    assert!(answer.headers.contains("content-type: text/event-stream"), "{}", answer.headers);
    let events = answer.events();
    // To the byte: data, a line break and an empty line.
    assert_eq!(answer.body, events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>());
    let (done, events) = events.split_last().unwrap();
    assert_eq!(*done, "[DONE]");
    let chunks: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]), (&json!([]), &whole["usage"]));
    for chunk in chunks {
        assert_eq!((&chunk["id"], &chunk["object"]), (&chunks[0]["id"], &json!("chat.completion.chunk")));
        assert!(chunk["usage"].is_null() && chunk["choices"].as_array().unwrap().len() == 1, "{chunk}");
    }
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(chunks[1..].iter().all(|chunk| chunk["choices"][0]["delta"].get("role").is_none()));
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
    assert!(others.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    let text: String = others.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, whole["choices"][0]["message"]["content"].as_str().unwrap());

    let completion = json!({"prompt": "ab", "max_tokens": 3, "stream": true, "echo": true});
    let answer = server.post("/v1/completions", &completion);
    let events = answer.events();
    assert!(events[0].contains("\"text\":\"ab") && !events[0].contains("usage"), "{}", answer.body);
    assert_eq!(events.last(), Some(&"[DONE]"));
    server.stop();
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let sandbox = sandbox();
    let server = Server::start(&sandbox, "llama", &[]);
    // Longer than a chunk of a prompt.
    let prompt: String = (0..200).map(|i| char::from(b'!' + (i * 7 % 90) as u8)).collect();
    let body = json!({"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 2, "echo": true});
    let answer = server.post("/v1/completions", &body).ok();
    let logprobs = &answer["choices"][0]["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap().clone();
    let (model, text) = model(&sandbox);
    let ids = text.tokenizer.encode(&prompt).unwrap();
    let input = rustyflow::Tensor::from_u32(&ids, [1, ids.len()], &rustyflow::Device::Cpu).unwrap();
    let logits = rustyflow::tensor::no_grad(|| model.logits(&input)).unwrap().to_f32().unwrap();
    let got = list("token_logprobs");
    assert_eq!((got.len(), &got[0], list("tokens").len()), (201, &Value::Null, 201));
    for (i, row) in logits.chunks(model.config().vocab_size).enumerate() {
        let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let target = ids.get(i + 1).map_or(best, |id| row[*id as usize]);
        let want = f64::from(target) - sum.ln();
        assert!((got[i + 1].as_f64().unwrap() - want).abs() < 1e-5, "token {i}: {} {want}", got[i + 1]);
        let top = list("top_logprobs")[i + 1].as_object().unwrap().clone();
        let highest = top.values().map(|value| value.as_f64().unwrap()).fold(f64::NEG_INFINITY, f64::max);
        assert!((highest - (f64::from(best) - sum.ln())).abs() < 1e-5 && (2..=3).contains(&top.len()), "{top:?}");
    }
    let text = answer["choices"][0]["text"].as_str().unwrap();
    let from = |offset: &Value| text.chars().nth(offset.as_u64().unwrap() as usize).map(String::from);
    for (token, offset) in list("tokens").iter().zip(list("text_offset")) {
        assert_eq!(from(&offset).as_deref(), token.as_str());
    }

    let body = chat("a", &json!({"logprobs": true, "top_logprobs": 3, "max_tokens": 4, "logit_bias": {"5": 100}}));
    let answer = server.post("/v1/chat/completions", &body).ok();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 4);
    for token in content {
        assert_eq!(token["token"], content[0]["token"], "the bias decides");
        assert_eq!(token["bytes"], json!(token["token"].as_str().unwrap().as_bytes()));
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 3);
        assert!(token["top_logprobs"][0]["logprob"].as_f64() >= token["logprob"].as_f64(), "{token}");
    }
    server.stop();
}

#[test]
fn embeddings_are_mean_hidden_states() {
    let sandbox = sandbox();
    let server = Server::start(&sandbox, "llama", &[]);
    // Longer than a chunk of a prompt; and tokens.
    let input = "ab cd ".repeat(30);
    let answer = server.post("/v1/embeddings", &json!({"input": [input, [5, 6, 7]]})).ok();
    assert_eq!((&answer["object"], &answer["usage"]["total_tokens"]), (&json!("list"), &json!(183)));
    let vector = |i: usize| -> Vec<f32> { serde_json::from_value(answer["data"][i]["embedding"].clone()).unwrap() };
    let (model, text) = model(&sandbox);
    for (i, ids) in [text.tokenizer.encode(&input).unwrap(), vec![5, 6, 7]].iter().enumerate() {
        let ids = rustyflow::Tensor::from_u32(ids, [1, ids.len()], &rustyflow::Device::Cpu).unwrap();
        let states = model.hidden(&ids, Past::Nothing, &Dropout::off()).unwrap().to_f32().unwrap();
        let mean: Vec<f32> = (0..32).map(|c| states.chunks(32).map(|state| state[c]).sum()).collect();
        let norm = mean.iter().map(|x| x * x).sum::<f32>().sqrt();
        for (got, want) in vector(i).iter().zip(&mean) {
            assert!((got - want / norm).abs() < 1e-5, "{got} {}", want / norm);
        }
    }
    let body = json!({"input": [5, 6, 7], "encoding_format": "base64"});
    let answer = server.post("/v1/embeddings", &body).ok();
    // Each three bytes are four digits.
    let text = answer["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(text.len(), (32_usize * 4).div_ceil(3) * 4);
    let numbers = server.post("/v1/embeddings", &json!({"input": [5, 6, 7]})).ok()["data"][0]["embedding"].clone();
    let numbers: Vec<f32> = numbers.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
    let bytes = BASE64_STANDARD.decode(text).unwrap();
    assert_eq!(bytes, bytemuck::cast_slice::<f32, u8>(&numbers), "the same numbers");
    server.post("/v1/embeddings", &json!({"input": []})).fails_with(400, "input: expected");
    server.post("/v1/embeddings", &json!({"input": "a", "dimensions": 3})).fails_with(400, "have 32");
    server.post("/v1/embeddings", &json!({"input": "a".repeat(300)})).fails_with(400, "context of 256");
    server.stop();
}

#[test]
fn every_mistake_is_told_with_its_status() {
    let sandbox = sandbox();
    sandbox.write("key", "s3cret\n");
    let server = Server::start(&sandbox, "llama", &["--name", "tiny", "--api-key-file", "key", "--queue", "4", "-v"]);
    let key = "Authorization: Bearer s3cret\r\n";
    let post = |path: &str, body: &str| server.request("POST", path, key, body);
    let chats = |further: Value| post("/v1/chat/completions", &chat("a", &further).to_string());
    server.get("/v1/models").fails_with(401, "no API key");
    server.request("GET", "/v1/models", "Authorization: Bearer wrong\r\n", "").fails_with(401, "not the one");
    assert_eq!((server.get("/health").status, server.get("/").status), (200, 200));
    server.request("GET", "/v1/nothing", key, "").fails_with(404, "/v1/nothing");
    server.request("GET", "/v1/models/other", key, "").fails_with(404, "\"other\"");
    server.request("GET", "/v1/chat/completions", key, "").fails_with(405, "POST");
    let elsewhere = format!("{key}Origin: http://example.com\r\n");
    server.request("POST", "/v1/chat/completions", &elsewhere, "{}").fails_with(403, "other sites");
    for (body, part) in [("", "not JSON"), ("[]", "a JSON object"), ("{", "not JSON"), ("{}", "messages")] {
        post("/v1/chat/completions", body).fails_with(400, part);
    }
    for (further, part) in [
        (json!({"model": "other"}), "\"tiny\""),
        (json!({"temperature": -1}), "temperature: expected a number from 0"),
        (json!({"temperature": "hot"}), "got \"hot\""),
        (json!({"top_p": 2}), "top_p"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_completion_tokens": 1.5}), "max_completion_tokens"),
        (json!({"n": 0}), "n: expected"),
        (json!({"n": 5}), "5 texts in one request, of at most 4"),
        (json!({"stop": [""]}), "stop"),
        (json!({"stop": vec!["a"; 17]}), "stop"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"top_logprobs": 3}), "\"logprobs\": true"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"99999": 1}}), "token ids below"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"tools": [{"type": "function", "function": {"name": "f"}}]}), "does not show tools"),
        (json!({"response_format": {"type": "json_object"}}), "response_format is not supported yet"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "robot", "content": "a"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "images"),
        (json!({"messages": [{"role": "user", "content": "\u{1f980}"}]}), "character"),
        (json!({"messages": [{"role": "user", "content": "a".repeat(300)}]}), "context of 256"),
    ] {
        let status = if further.get("model").is_some() { 404 } else { 400 };
        chats(further).fails_with(status, part);
    }
    for (body, part) in [
        (json!({"prompt": [99999]}), "token ids below"),
        (json!({"prompt": {}}), "prompt: expected"),
        (json!({"prompt": [[]]}), "prompt: expected"),
        (json!({"prompt": "a".repeat(256)}), "context of 256"),
        (json!({"prompt": "a", "logprobs": 99}), "logprobs"),
        (json!({"prompt": "a", "suffix": "b"}), "suffix"),
        (json!({"prompt": "a", "best_of": 3}), "best_of"),
    ] {
        post("/v1/completions", &body.to_string()).fails_with(400, part);
    }
    post("/tokenize", "{}").fails_with(400, "content");
    post("/detokenize", "{\"tokens\": [-1]}").fails_with(400, "tokens");
    // What is no HTTP, and what is too much.
    let mut garbage = server.connect();
    garbage.write_all(b"\x16\x03\x01\x00garbage\r\n\r\n").unwrap();
    assert_eq!(answer(garbage).status, 400);
    let mut large = server.connect();
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{key}");
    large.write_all(format!("{head}Content-Length: 99999999\r\n\r\n").as_bytes()).unwrap();
    answer(large).fails_with(413, "bytes");
    let mut stream = server.connect();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n").unwrap();
    answer(stream).fails_with(403, "localhost");
    let headers: String = (0..100).map(|i| format!("X-{i}: 1\r\n")).collect();
    assert_eq!(server.request("GET", "/health", &headers, "").status, 431);
    assert_eq!(post("/v1/chat/completions", &chat("Say it", &json!({})).to_string()).status, 200);
    let run = server.stop();
    assert!(run.stderr.contains("POST /chat/completions 200"), "{run:?}");
    assert!(!run.stderr.contains("s3cret") && !run.stderr.contains("Say it"), "{run:?}");
}

#[test]
fn wrong_flags_are_told() {
    let sandbox = sandbox();
    let serve = |further: &[&str]| {
        let args = ["serve", "--model", "llama", "--device", "cpu", "--port", "0"];
        sandbox.run(&[&args[..], further].concat())
    };
    serve(&["--api-key-file", "nowhere"]).fails_with(&["--api-key-file nowhere"]);
    sandbox.write("empty", "\n");
    serve(&["--api-key-file", "empty"]).fails_with(&["--api-key-file empty", "one line"]);
    serve(&["--chat-template", "nowhere.jinja"]).fails_with(&["nowhere.jinja"]);
    serve(&["--host", "192.0.2.1"]).fails_with(&["--host 192.0.2.1"]);
    assert_eq!(serve(&["--host", "no address"]).code, Some(2));
    assert_eq!(serve(&["--slots", "0"]).code, Some(2));
}
