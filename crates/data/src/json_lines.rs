//! Documents in JSON: one object per line, or a list of objects. `json_rows.rs` describes the objects.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::de::{DeserializeSeed, Error as _, SeqAccess, Visitor};
use serde_json::Value;

use super::chat::ChatTemplate;
use super::json_rows::{Failure, Mapped, take_row};
use super::source::{READ_BYTES, Sink, bad};
use rustyflow_base::error::{Error, Result};

/// Hands over the documents of a file: those of a list if it begins with `[`, and otherwise one of each line.
///
/// # Errors
/// If it cannot be read, an object is no such document, or there is no chat template where one is needed; those of
/// `sink`.
pub(super) fn read_json(
    path: &Path,
    reader: Box<dyn Read>,
    chat: Option<&ChatTemplate>,
    sink: &mut Sink,
) -> Result<Mapped> {
    let failed = |error| Error::io("read", path, error);
    let mut reader = BufReader::with_capacity(READ_BYTES, reader);
    if reader.fill_buf().map_err(failed)?.starts_with("\u{feff}".as_bytes()) {
        reader.consume("\u{feff}".len());
    }
    let mut lines_before = 0;
    loop {
        let buffer = reader.fill_buf().map_err(failed)?;
        let space = buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if space == 0 {
            break;
        }
        lines_before += buffer[..space].iter().filter(|byte| **byte == b'\n').count();
        reader.consume(space);
    }
    match reader.fill_buf().map_err(failed)?.first() {
        Some(b'[') => read_list(path, reader, lines_before, chat, sink),
        _ => read_lines(path, reader, lines_before, chat, sink),
    }
}

fn read_lines(
    path: &Path,
    mut reader: impl BufRead,
    lines_before: usize,
    chat: Option<&ChatTemplate>,
    sink: &mut Sink,
) -> Result<Mapped> {
    let (mut line, mut mapped) = (vec![], Mapped::default());
    for number in 1 + lines_before.. {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(|error| Error::io("read", path, error))? == 0 {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let wrong = |message: String| bad(path, format!("line {number}: {message}"));
        let value: Value = serde_json::from_slice(&line).map_err(|error| wrong(not_json(&line, &error)))?;
        mapped += take_row(value, chat, sink).map_err(|failure| match failure {
            Failure::Row(message) => wrong(message),
            Failure::Sink(error) => error,
        })?;
    }
    Ok(mapped)
}

/// The parser's message for a line, without its line number, which refers to a single line.
fn not_json(line: &[u8], error: &serde_json::Error) -> String {
    let text = error.to_string();
    let cause = text.split(" at line ").next().unwrap_or(&text);
    let column = error.column();
    let at = line.get(column.saturating_sub(1)..).unwrap_or_default();
    let is_constant = |word: &str| at.starts_with(word.as_bytes()) || at.starts_with(&word.as_bytes()[1..]);
    match ["NaN", "Infinity", "-Infinity"].into_iter().find(|word| is_constant(word)) {
        Some(word) => format!("not JSON at column {column}: {word} is Python's and not a JSON value; write null"),
        None if error.is_eof() => {
            format!("not JSON: it ends within a value ({cause}); an object must be in one line")
        }
        None => format!("not JSON at column {column}: {cause}"),
    }
}

/// Reads a list with one object in memory at a time.
fn read_list(
    path: &Path,
    reader: impl Read,
    lines_before: usize,
    chat: Option<&ChatTemplate>,
    sink: &mut Sink,
) -> Result<Mapped> {
    let (mut failure, mut mapped) = (None, Mapped::default());
    let mut deserializer = serde_json::Deserializer::from_reader(reader);
    let mut each = |number: usize, value| match take_row(value, chat, sink) {
        Ok(row) => {
            mapped += row;
            true
        }
        Err(Failure::Row(message)) => {
            failure = Some(bad(path, format!("object {number} of the list: {message}")));
            false
        }
        Err(Failure::Sink(error)) => {
            failure = Some(error);
            false
        }
    };
    let read = Objects { each: &mut each }.deserialize(&mut deserializer).and_then(|()| deserializer.end());
    if let Some(failure) = failure {
        return Err(failure);
    }
    read.map_err(|error| {
        let text = error.to_string();
        let cause = text.split(" at line ").next().unwrap_or(&text);
        bad(path, format!("line {}, column {}: not JSON: {cause}", error.line() + lines_before, error.column()))
    })?;
    Ok(mapped)
}

/// Calls `each` with the number and value of every object, until it returns false.
struct Objects<'a> {
    each: &'a mut dyn FnMut(usize, Value) -> bool,
}

impl<'de> DeserializeSeed<'de> for Objects<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Objects<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> std::result::Result<(), A::Error> {
        let mut number = 1;
        while let Some(value) = all.next_element()? {
            if !(self.each)(number, value) {
                return Err(A::Error::custom("not needed"));
            }
            number += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::chat::ChatSpec;
    use super::super::documents::Label;
    use super::super::source::Piece;
    use super::*;

    /// What is read of a text: "+" before what is predicted, "-" before what is not, "." and "!" for ends.
    fn read(text: &str, with_template: bool) -> Result<Vec<String>> {
        let chat = ChatTemplate::find(&ChatSpec { template: "chatml", folder: None })?.filter(|_| with_template);
        let mut pieces = vec![];
        let reader = Box::new(std::io::Cursor::new(text.as_bytes().to_vec()));
        read_json(Path::new("some.jsonl"), reader, chat.as_ref(), &mut |piece| {
            pieces.push(match piece {
                Piece::Text(text) => format!("+{text}"),
                Piece::Prompt(text) => format!("-{text}"),
                Piece::Turn(text, predicted) => format!("{}{text}", if predicted { "+" } else { "-" }),
                Piece::End(label) => format!(".{}", mark(label)),
                Piece::EndOfChat(label) => format!("!{}", mark(label)),
            });
            Ok(())
        })?;
        Ok(pieces)
    }

    fn mark(label: Label) -> &'static str {
        match label {
            Label::None => "",
            Label::Chosen => "chosen",
            Label::Rejected => "rejected",
            Label::Desirable => "desirable",
            Label::Undesirable => "undesirable",
            Label::Mismatched => unreachable!("no file has one"),
        }
    }

    #[test]
    fn pairs_and_labelled_answers_are_read() {
        let plain = ["-Hi", "+ you", ".chosen", "-Hi", "+ there", ".rejected"];
        for line in [
            r#"{"prompt": "Hi", "chosen": " you", "rejected": " there"}"#,
            r#"{"chosen": "Hi you", "rejected": "Hi there"}"#,
            r#"{"prompt": null, "chosen": "Hi you", "rejected": "Hi there", "score": 3}"#,
        ] {
            assert_eq!(read(line, false).unwrap(), plain, "{line}");
        }
        let asked = "-<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n";
        let chat = [asked, "+d<|im_end|>\n", "!chosen", asked, "+e<|im_end|>\n", "!rejected"];
        let (user, good, bad) = (
            r#"{"role": "user", "content": "c"}"#,
            r#"{"role": "assistant", "content": "d"}"#,
            r#"{"role": "assistant", "content": "e"}"#,
        );
        for line in [
            format!(r#"{{"prompt": [{user}], "chosen": [{good}], "rejected": [{bad}]}}"#),
            format!(r#"{{"chosen": [{user}, {good}], "rejected": [{user}, {bad}]}}"#),
            format!(r#"{{"prompt": "c", "chosen": [{user}, {good}], "rejected": [{user}, {bad}]}}"#),
            format!(
                r#"{{"prompt": "c", "messages": [{user}], "chosen": [{user}, {good}], "rejected": [{user}, {bad}]}}"#
            ),
        ] {
            assert_eq!(read(&line, true).unwrap(), chat, "{line}");
        }
        let labelled = r#"{"prompt": "a", "completion": "b", "label": true}
            {"prompt": "a", "completion": "c", "label": false}"#;
        assert_eq!(read(labelled, false).unwrap(), ["-a", "+b", ".desirable", "-a", "+c", ".undesirable"]);
        for (line, expected) in [
            (r#"{"prompt": "a", "chosen": "", "rejected": "b"}"#, "\"chosen\" has no answer"),
            (r#"{"chosen": "a b", "rejected": "a"}"#, "\"rejected\" has no answer"),
            (r#"{"chosen": "a", "rejected": 3}"#, "two texts or two lists"),
            (r#"{"question": "q", "chosen": "a", "rejected": "b"}"#, "rename it"),
            (r#"{"prompt": "a", "completion": "", "label": false}"#, "\"completion\" is empty"),
            (&format!(r#"{{"chosen": [{good}], "rejected": [{bad}]}}"#), "there is no prompt"),
        ] {
            let error = read(line, true).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn every_kind_of_line_is_read() {
        let lines = [
            r#"{"text": "all"}"#,
            "",
            r#"{"prompt": "2+2=", "completion": "4", "id": 7}"#,
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
            r#"{"prompt": [{"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]}"#,
        ];
        let expected = [
            "+all",
            ".",
            "-2+2=",
            "+4",
            ".",
            "-<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n",
            "+b<|im_end|>",
            "-\n",
            "!",
            "-<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n",
            "+d<|im_end|>\n",
            "!",
        ];
        assert_eq!(read(&lines.join("\n"), true).unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (line, with_template, expected) in [
            (r#"{"content": "x", "id": 1}"#, true, "its keys are content, id"),
            (r#"{"prompt": "x"}"#, true, "\"completion\""),
            (r#"{"prompt": "x", "completion": 3}"#, true, "two texts"),
            (r#"{"messages": [{"role": "user", "content": "a"}]}"#, true, "assistant"),
            (r#"{"messages": [{"content": "a"}]}"#, true, "message 1"),
            (r#"{"messages": [{"role": "assistant", "content": "a"}]}"#, false, "data.chat_template"),
            (r#"{"messages": "a"}"#, true, "line 2"),
            (r#"["text"]"#, true, "is a list, expected an object"),
            (r#"{"text": null}"#, true, "\"text\" is null"),
            (r#"{"text": 3}"#, true, "\"text\" is the number 3"),
            (r#"{"text": ["a"]}"#, true, "\"text\" is a list"),
            (r#"{"text": "c", "score": NaN}"#, true, "NaN is Python's"),
            (r#"{"text": "c", "score": -Infinity}"#, true, "Infinity is Python's"),
            (r#"{"text": "c""#, true, "ends within a value"),
            (r#"{'text': 'c'}"#, true, "not JSON at column 2"),
            ("null", true, "is null, expected an object"),
            ("{}", true, "is an empty object"),
            (r#"{"conversations": [{"from": "martian", "value": "a"}]}"#, true, "turn 1 is from \"martian\""),
            (r#"{"conversations": [{"from": "gpt", "value": null}]}"#, true, "the \"value\" of turn 1 is null"),
            (r#"{"instruction": "a", "output": 3}"#, true, "\"output\" is the number 3"),
        ] {
            let error = read(&format!("{{\"text\": \"fine\"}}\n{line}"), with_template).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("some.jsonl") && error.contains("line 2"), "{error}");
        }
    }

    #[test]
    fn rows_of_share_gpt_and_alpaca_are_mapped() {
        let share_gpt =
            r#"{"system": "s", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}"#;
        let ours = r#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"}]}"#
            .replace('\n', "");
        assert_eq!(read(share_gpt, true).unwrap(), read(&ours, true).unwrap());
        let alpaca = r#"{"instruction": "a", "input": "i", "output": "b"}"#;
        let ours = r#"{"messages": [{"role": "user", "content": "a\ni"}, {"role": "assistant", "content": "b"}]}"#;
        assert_eq!(read(alpaca, true).unwrap(), read(ours, true).unwrap());
        let plain = read(alpaca, false).unwrap();
        assert!(plain[0].ends_with("### Instruction:\na\n\n### Input:\ni\n\n### Response:\n"), "{}", plain[0]);
        assert_eq!(plain[1..], ["+b", "."]);
    }

    #[test]
    fn a_list_is_read_object_by_object() {
        let list = "\u{feff}\n[{\"text\": \"a\"},\n {\"prompt\": \"b\", \"completion\": \"c\"}\n]\n";
        assert_eq!(read(list, false).unwrap(), ["+a", ".", "-b", "+c", "."]);
        for (list, expected) in [
            (r#"[{"text": "a"}, {"text": 3}]"#, "object 2 of the list: \"text\" is the number 3"),
            ("\n[{\"text\": \"a\"},\n{\"text\": NaN}]", "line 3"),
            (r#"[{"text": "a"}"#, "line 1"),
            (r#"[{"text": "a"}] x"#, "trailing"),
        ] {
            let error = read(list, false).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("some.jsonl"), "{error}");
        }
    }
}
