use super::*;

fn template(source: &str) -> ChatTemplate {
    let tokens = special_tokens(json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}}).as_object().unwrap());
    ChatTemplate::new("test", source, tokens).unwrap()
}

fn messages() -> Vec<Value> {
    let all = [("user", "Hi"), ("assistant", " Hello. "), ("user", "Bye"), ("assistant", "So long")];
    all.map(|(role, content)| json!({"role": role, "content": content})).to_vec()
}

/// As Llama 2 and Mistral have it, shortened.
const INSTRUCT: &str = "{{ bos_token }}{%- for message in messages %}\n    {%- if message.role == 'user' -%}\n\
    {{ '[INST] ' + message.content.strip() + ' [/INST]' }}\n    {%- elif message['role'] == 'assistant' -%}\n\
    {{ message['content'] | trim + eos_token }}\n    {%- else %}\n        {{ raise_exception('only users') }}\n\
    {%- endif %}\n{%- endfor %}";

#[test]
fn a_conversation_is_written_as_the_template_says() {
    let text = template(INSTRUCT).render(&messages(), None, false).unwrap();
    assert_eq!(text, "<s>[INST] Hi [/INST]Hello.</s>[INST] Bye [/INST]So long</s>");
    let chatml = ChatTemplate::find(&ChatSpec { template: "chatml", folder: None }).unwrap().unwrap();
    let text = chatml.render(&messages()[..1], None, true).unwrap();
    assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn what_ends_an_answer_is_what_the_template_writes_after_it() {
    let chatml = ChatTemplate::find(&ChatSpec { template: "chatml", folder: None }).unwrap().unwrap();
    let system = [json!({"role": "system", "content": "Be brief."})];
    for (template, system, expected) in [
        (chatml.clone(), &[][..], "<|im_end|>"),
        (chatml, &system, "<|im_end|>"),
        (template(INSTRUCT), &[], "</s>"),
        (template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"), &[], "\n"),
        (template("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"), &[], ""),
    ] {
        assert_eq!(template.end_of_answer(system).unwrap(), expected);
    }
    assert!(template(INSTRUCT).end_of_answer(&system).unwrap_err().to_string().contains("only users"));
}

#[test]
fn answers_are_found_without_marks() {
    let turns = template(INSTRUCT).turns(&messages(), None).unwrap();
    let turns: Vec<_> = turns.iter().map(|turn| (turn.text.as_str(), turn.predicted)).collect();
    assert_eq!(
        turns,
        [("<s>[INST] Hi [/INST]", false), ("Hello.</s>", true), ("[INST] Bye [/INST]", false), ("So long</s>", true)]
    );
}

#[test]
fn answers_are_found_by_marks() {
    let chatml = ChatTemplate::find(&ChatSpec { template: "chatml", folder: None }).unwrap().unwrap();
    let turns = chatml.turns(&messages(), None).unwrap();
    let answers: Vec<_> = turns.iter().filter(|turn| turn.predicted).map(|turn| turn.text.as_str()).collect();
    assert_eq!(answers, [" Hello. <|im_end|>", "So long<|im_end|>"]);
    let all: String = turns.iter().map(|turn| turn.text.as_str()).collect();
    assert_eq!(all, chatml.render(&messages(), None, false).unwrap());
    // White space around the tags goes as around any other.
    let trimmed = template(
        "{% for m in messages %}\n  {%- generation -%}\n  {{ m.content }}\n  {%- endgeneration %}\nx{% endfor %}",
    );
    assert_eq!(trimmed.render(&messages()[..1], None, false).unwrap(), "Hix");
}

#[test]
fn a_template_that_rewrites_what_was_said_is_refused() {
    let last_only = "{% for m in messages %}{{ m.role }}{% if loop.last %}!{% endif %}{% endfor %}";
    let error = template(last_only).turns(&messages(), None).unwrap_err().to_string();
    assert!(error.contains("{% generation %}") && error.contains("data.chat_template"), "{error}");
}

#[test]
fn what_a_template_raises_is_told() {
    let messages = [json!({"role": "system", "content": "x"})];
    let error = template(INSTRUCT).render(&messages, None, false).unwrap_err().to_string();
    assert!(error.contains("only users") && error.contains("test"), "{error}");
    let error = template(INSTRUCT).turns(&messages, None).unwrap_err().to_string();
    assert!(error.contains("assistant"), "{error}");
    let error = ChatTemplate::new("broken", "{% for %}", Map::new()).unwrap_err().to_string();
    assert!(error.contains("broken") && error.contains("line 1"), "{error}");
}

#[test]
fn an_endless_loop_ends() {
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a %}{% endfor %}{% endfor %}";
    let error = template(loops).render(&messages(), None, false).unwrap_err().to_string();
    assert!(error.contains("too long"), "{error}");
    let calls = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}";
    assert!(template(calls).render(&messages(), None, false).is_err());
}

#[test]
fn a_text_that_doubles_ends() {
    // 2 to the 60th, in sixty steps: as an operand, as a captured block, by a method and by a filter.
    for twice in [
        "{% set n.x = n.x ~ n.x %}",
        "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}",
        "{% set n.x = n.x.replace('a', 'aa') %}",
        "{% set n.x = [n.x, n.x] | join %}",
    ] {
        let source = "{% set n = namespace(x='a') %}{% for i in range(60) %}".to_string() + twice + "{% endfor %}";
        let error = template(&source).render(&messages(), None, false).unwrap_err().to_string();
        assert!(error.contains("too long a text"), "{twice}: {error}");
    }
}

#[test]
fn the_template_of_a_folder_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let find = || ChatTemplate::find(&ChatSpec { template: "", folder: Some(folder.path()) }).unwrap();
    assert!(find().is_none());
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let templates = json!([{"name": "rag", "template": "no"}, {"name": "default", "template": "{{ eos_token }}1"}]);
    write("tokenizer_config.json", &json!({"eos_token": "E", "chat_template": templates}).to_string());
    assert_eq!(find().unwrap().render(&messages(), None, false).unwrap(), "E1");
    write("chat_template.jinja", "{{ eos_token }}2");
    assert_eq!(find().unwrap().render(&messages(), None, false).unwrap(), "E2");
}

/// What transformers makes of templates in the style of published models, and of single expressions:
/// `scripts/make_chat_goldens.py`.
#[test]
fn templates_are_rendered_as_transformers_renders_them() {
    let goldens: Value = serde_json::from_str(include_str!("../../../../tests/goldens/chat.json")).unwrap();
    let tokens = json!({"bos_token": "<s>", "eos_token": "</s>"}).as_object().unwrap().clone();
    let mut wrong = vec![];
    for case in goldens["cases"].as_array().unwrap() {
        let messages = goldens["chats"][case["chat"].as_str().unwrap()].as_array().unwrap();
        let tools = case["tools"].as_bool().unwrap().then_some(&goldens["tools"]);
        let template = case["template"].as_str().unwrap();
        let text = ChatTemplate::new("test", template, tokens.clone())
            .and_then(|template| template.render(messages, tools, case["answer_next"] == true));
        if text.as_deref().ok() != case["text"].as_str() {
            wrong.push(format!("{}: {template}\nexpected {}\ngot      {text:?}", case["name"], case["text"]));
        }
    }
    assert!(wrong.is_empty(), "{} of the templates differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn what_is_set_within_a_generation_block_stays_in_it() {
    let source = "{% for m in messages %}{% set c = m.content %}{% if m.role == 'assistant' %}{% generation %}\
        {% set c = c | trim %}{{ c }}.{% endgeneration %}{% else %}{{ c }}{% endif %}[{{ c }}]{% endfor %}";
    let template = template(source);
    let text = "Hi[Hi]Hello..[ Hello. ]Bye[Bye]So long.[So long]";
    assert_eq!(template.render(&messages(), None, false).unwrap(), text);
    let turns = template.turns(&messages(), None).unwrap();
    let answers: Vec<_> = turns.iter().filter(|turn| turn.predicted).map(|turn| turn.text.as_str()).collect();
    assert_eq!(answers, ["Hello..", "So long."]);
}

#[test]
fn an_answer_that_is_changed_after_its_block_is_refused() {
    let source = "{% for m in messages %}{% set t %}{% generation %} {{ m.content }} {% endgeneration %}{% endset %}\
        {{ t | trim }}{% endfor %}";
    let error = template(source).turns(&messages(), None).unwrap_err().to_string();
    assert!(error.contains("{% generation %}"), "{error}");
}

#[test]
fn keys_that_are_null_are_absent_and_reasoning_has_every_name() {
    let messages = [json!({"role": "assistant", "content": null, "reasoning": "why"})];
    let source = "{% for m in messages %}{{ m.content }}|{{ m.content is defined }}|{{ m.reasoning_content }}|\
        {{ m.thinking }}|{{ tools is none }}{% endfor %}";
    assert_eq!(template(source).render(&messages, None, false).unwrap(), "|False|why|why|True");
}

#[test]
fn of_several_templates_tools_choose() {
    let folder = tempfile::tempdir().unwrap();
    let find = || ChatTemplate::find(&ChatSpec { template: "", folder: Some(folder.path()) });
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let templates = json!([
        {"name": "tool_use", "template": "\n  with {{ tools | length }}\n  "},
        {"name": "default", "template": "  without\n"},
    ]);
    write("tokenizer_config.json", &json!({ "chat_template": templates }).to_string());
    let tools = json!([{"name": "a"}]);
    let render = |tools| find().unwrap().unwrap().render(&messages(), tools, false).unwrap();
    assert_eq!((render(None).as_str(), render(Some(&tools)).as_str()), ("  without", "\n  with 1\n  "));
    // It stays one template in a checkpoint, and chooses there as well.
    let source = find().unwrap().unwrap().source().to_string();
    assert_eq!(template(&source).render(&messages(), Some(&tools), false).unwrap(), "\n  with 1\n  ");
    std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    write("additional_chat_templates/tool_use.jinja", "file");
    let error = find().unwrap_err().to_string();
    assert!(error.contains("tool_use") && error.contains("data.chat_template"), "{error}");
    write("chat_template.jinja", "default");
    assert_eq!((render(None).as_str(), render(Some(&tools)).as_str()), ("default", "file"));
}

#[test]
fn special_tokens_are_found_where_older_versions_wrote_them() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("tokenizer_config.json", r#"{"chat_template": "{{ bos_token }}{{ cls_token }}", "cls_token": "C"}"#);
    write("special_tokens_map.json", r#"{"bos_token": {"content": "B"}, "cls_token": "other"}"#);
    let template = ChatTemplate::find(&ChatSpec { template: "", folder: Some(folder.path()) }).unwrap().unwrap();
    assert_eq!(template.render(&messages(), None, false).unwrap(), "BC");
}

#[test]
fn a_value_that_holds_itself_and_a_date_that_is_none_are_errors() {
    let render = |source: &str| template(source).render(&messages(), None, false);
    for source in [
        "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
        "{% set n = namespace() %}{% set n.x = n %}{{ n | tojson }}",
    ] {
        assert!(render(source).is_err(), "{source}");
    }
    assert_eq!(render("{{ strftime_now('%Y') | length }} {{ strftime_now('%!') }}").unwrap(), "4 %!");
    let error = template("{{ tools }}").render(&messages(), Some(&json!("[]")), false).unwrap_err().to_string();
    assert!(error.contains("\"tools\""), "{error}");
}

/// What transformers renders and this does not: never another text, and the error says what and where.
#[test]
fn what_is_not_supported_is_refused_by_name_and_line() {
    for (source, what) in [
        ("{% macro f(a) %}\n{{ varargs }}{% endmacro %}{{ f(1) }}", "`varargs`"),
        ("{% macro f(a) %}\n{% for k in kwargs %}{{ k }}{% endfor %}{% endmacro %}{{ f(1) }}", "`kwargs`"),
        ("\n{{ self }}", "`self`"),
        ("\n{{ messages | pprint }}", "pprint"),
        ("\n{{ 'a' | wordwrap(5) }}", "wordwrap"),
        ("\n{{ 'a' | urlencode }}", "urlencode"),
        ("\n{{ 'a' | forceescape }}", "forceescape"),
        ("\n{{ {'a': 1} | xmlattr }}", "xmlattr"),
        ("\n{{ 1 | filesizeformat }}", "filesizeformat"),
        ("\n{{ [1] | random }}", "random"),
        ("\n{{ 'a' | attr('upper') }}", "attr"),
        ("\n{{ {'a': 1} | attr('items') }}", "attr"),
        ("\n{{ 'a'.join(['%s']) % 1 }}", "%"),
        ("\n{% for x in none %}{% endfor %}", "not iterable"),
        ("\n{{ 1 < 'a' }}", "'<' not supported between instances of 'int' and 'str'"),
        ("\n{{ missing > 1 }}", "left of '>' is undefined"),
        ("\n{{ 1 in 'a1' }}", "'in <string>' requires string as left operand, not int"),
        ("\n{{ 1 < 'a' < 3 }}", "'<' not supported between instances of 'int' and 'str'"),
        ("\n{{ messages | map(attribute='role') }}", "add `| list`"),
        ("\n{{ [1] | reverse ~ 'a' }}", "add `| list`"),
    ] {
        let error = template(source).render(&messages(), None, false).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("line 2"), "{source}: {error}");
    }
}
