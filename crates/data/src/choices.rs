//! Multiple-choice questions, one JSON object per line: `{"question": "..", "choices": ["..", ".."], "answer": 1}`.

use crate::read_text;
use rustyflow_base::error::{Error, Result};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// A question, its choices, and the correct one.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    pub question: String,
    pub choices: Vec<String>,
    /// Index of the correct choice.
    pub answer: usize,
    /// Its line in the file, from 1.
    pub line: usize,
}

/// A line as it is written. Other keys may stand beside these.
#[derive(Deserialize)]
struct Line {
    question: String,
    choices: Vec<String>,
    answer: Value,
}

/// Reads all questions of a file.
///
/// # Errors
/// If it cannot be read, has no questions, or a line is invalid; the message names the line and the reason.
pub fn read_questions(path: &Path) -> Result<Vec<Question>> {
    let wrong = |message: String| Error::Corpus { path: path.to_path_buf(), message };
    let mut questions = vec![];
    for (number, text) in read_text(path)?.lines().enumerate() {
        if !text.trim().is_empty() {
            let line = number + 1;
            questions.push(parse(text, line).map_err(|message| wrong(format!("line {line}: {message}")))?);
        }
    }
    if questions.is_empty() {
        let expected = r#"{"question": "..", "choices": ["..", ".."], "answer": 0}"#;
        return Err(wrong(format!("has no questions; expected lines such as {expected}")));
    }
    Ok(questions)
}

fn parse(text: &str, line: usize) -> std::result::Result<Question, String> {
    let read: Line = serde_json::from_str(text).map_err(|error| {
        // The library counts the lines of this one text.
        let message = error.to_string();
        message.split(" at line 1 ").next().unwrap_or_default().to_string()
    })?;
    let Line { question, choices, answer } = read;
    if choices.len() < 2 {
        return Err(format!("choices has {}, expected two or more", choices.len()));
    }
    if let Some(empty) = choices.iter().position(|choice| choice.trim().is_empty()) {
        return Err(format!("choices[{empty}] is empty"));
    }
    let answer = place_of(&answer, &choices)?;
    Ok(Question { question, choices, answer, line })
}

/// The index of the correct choice, given by index, text, or letter.
fn place_of(answer: &Value, choices: &[String]) -> std::result::Result<usize, String> {
    let expected = || {
        let last = choices.len() - 1;
        format!("answer is {answer}; expected an index from 0 to {last}, a letter from A, or the text of a choice")
    };
    let place = match answer {
        Value::Number(place) => place.as_u64().and_then(|place| usize::try_from(place).ok()),
        Value::String(text) => {
            let mut same = (0..choices.len()).filter(|&place| choices[place] == *text);
            let letter = || match text.as_bytes() {
                [letter] if letter.is_ascii_alphabetic() => Some(usize::from(letter.to_ascii_uppercase() - b'A')),
                _ => None,
            };
            match (same.next(), same.next()) {
                (Some(_), Some(_)) => {
                    return Err(format!("answer is {answer}, which matches several choices; give its index"));
                }
                (found, _) => found.or_else(letter),
            }
        }
        _ => None,
    };
    place.filter(|&place| place < choices.len()).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(choices: Value, answer: Value) -> std::result::Result<usize, String> {
        let line = json!({ "question": "?", "choices": choices, "answer": answer, "id": 7 });
        parse(&line.to_string(), 3).map(|question| question.answer)
    }

    #[test]
    fn an_answer_is_a_place_a_letter_or_a_text() {
        let three = || json!(["red", "blue", "7"]);
        for (answer, place) in [(json!(2), 2), (json!("B"), 1), (json!("c"), 2), (json!("red"), 0), (json!("7"), 2)] {
            assert_eq!(read(three(), answer), Ok(place));
        }
        // What is written as a choice is that choice.
        assert_eq!(read(json!(["B", "A"]), json!("A")), Ok(1));
        for answer in [json!(3), json!(-1), json!(0.5), json!("D"), json!("green"), json!(""), json!(null), json!([0])]
        {
            assert!(read(three(), answer.clone()).unwrap_err().contains(&format!("answer is {answer}; expected")));
        }
        assert!(read(json!(["a", "a"]), json!("a")).unwrap_err().contains("several choices"));
    }

    #[test]
    fn a_line_that_is_no_question_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("q.jsonl");
        let error = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_questions(&path).unwrap_err().to_string()
        };
        let good = r#"{"question": "?", "choices": ["a", "b"], "answer": 0}"#;
        for (line, told) in [
            ("{", "line 3: EOF while parsing"),
            (r#"{"question": "?", "choices": ["a", "b"]}"#, "line 3: missing field `answer`"),
            (r#"{"question": 3, "choices": ["a", "b"], "answer": 0}"#, "line 3: invalid type: integer `3`"),
            (r#"{"question": "?", "choices": ["a"], "answer": 0}"#, "line 3: choices has 1"),
            (r#"{"question": "?", "choices": ["a", " "], "answer": 0}"#, "line 3: choices[1] is empty"),
            (r#"{"question": "?", "choices": ["a", "b"], "answer": 2}"#, "line 3: answer is 2"),
        ] {
            let error = error(&format!("{good}\n\n{line}\n"));
            assert!(error.contains("q.jsonl: ") && error.contains(told), "{error:?} lacks {told:?}");
        }
        assert!(error("\n").contains("has no question"));
    }
}
