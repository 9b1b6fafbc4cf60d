//! Tools: what the template shows of them, and calls in answers, by a model that knows one call by heart.

use super::Server;
use crate::sandbox::{Sandbox, TINY};
use serde_json::{Value, json};

const TEMPLATE: &str = "{% if tools %}[{{ tools[0].function.name }}]{% endif %}\
    {% for m in messages %}<{{ m.role }}>{{ m.content }}\
    {% for call in m.tool_calls %}<tool_call>{{ call.function.arguments.x }}{% endfor %}{{ '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}<assistant>{% endif %}";
const CALL: &str = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>";

fn server() -> (Sandbox, Server) {
    let sandbox = Sandbox::new();
    sandbox.write("corpus.txt", format!("[f]<user>go\n<assistant>ok {CALL}\n").repeat(60));
    sandbox.write("mine.jinja", TEMPLATE);
    sandbox.write("tiny.toml", TINY.replace("block_size = 16", "block_size = 128\nkind = \"llama\""));
    let settings = ["train.learning_rate=0.01", "train.max_steps=300", "train.eval_every=0", "log.every=300"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    sandbox.train(&["--name", "calls"].into_iter().chain(settings).collect::<Vec<_>>()).succeeds();
    let server = Server::start(&sandbox, "calls", &[]);
    (sandbox, server)
}

fn body(further: &Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let messages = json!([{"role": "user", "content": "go"}]);
    let mut body = json!({"messages": messages, "tools": [tool], "temperature": 0});
    body.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    body
}

#[test]
fn calls_of_tools_are_read_from_answers() {
    let (_sandbox, server) = server();
    let chat = |further: Value| server.post("/v1/chat/completions", &body(&further));
    let choice = chat(json!({})).ok()["choices"][0].clone();
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &json!("ok")));
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &calls[0]["type"]), (1, &json!("function")));
    assert_eq!(calls[0]["function"], json!({"name": "f", "arguments": "{\"x\":1}"}));
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_"));

    // No part of the call is sent as text.
    let answer = chat(json!({"stream": true}));
    let deltas: Vec<Value> = answer.events()[..answer.events().len() - 1]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap()["choices"][0].clone())
        .collect();
    let text: String = deltas.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
    assert_eq!(text.trim_end(), "ok", "{}", answer.body);
    let [.., call, last] = &deltas[..] else { panic!("{}", answer.body) };
    let call = &call["delta"]["tool_calls"][0];
    assert_eq!((&call["index"], &call["function"]["arguments"]), (&json!(0), &json!("{\"x\":1}")));
    assert_eq!(last["finish_reason"], "tool_calls");

    // Without room for its end it is text.
    let cut = chat(json!({"max_tokens": 20})).ok()["choices"][0].clone();
    assert_eq!((&cut["finish_reason"], cut["message"].get("tool_calls")), (&json!("length"), None));
    assert!(cut["message"]["content"].as_str().unwrap().contains("<tool_call>"), "{cut}");
    // The template does not see tools that are not to be used: three characters less.
    let tokens = |further: Value| chat(further).ok()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(tokens(json!({})), tokens(json!({"tool_choice": "none"})) + 3);
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}});
    let answered = json!([
        {"role": "user", "content": "go"}, {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]);
    let rendered = "[f]<user>go\n<assistant><tool_call>1\n<tool>ok\n<assistant>";
    assert_eq!(tokens(json!({"messages": answered})), rendered.len() as u64);

    chat(json!({"tool_choice": "required"})).fails_with(400, "cannot be forced");
    chat(json!({"tools": [{"type": "function"}]})).fails_with(400, "tools[0]");
    let wrong = json!({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": 1}}]}]});
    chat(wrong).fails_with(400, "messages[0].tool_calls");
    server.stop();
}
