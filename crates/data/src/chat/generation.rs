//! Templates in the engine's own language: transformers' block `{% generation %}`, which encloses what the assistant
//! says, and the expressions of [`rewrite`].
//!
//! Its body has a scope of its own, as that of a `with` block: what is set in it is gone after it. So the block becomes
//! one, and where the answers are to be found, a mark stands at either end of it.

use super::rewrite::rewrite;

/// Enclose what a template marks by `{% generation %}`. Private to this program, by Unicode's rules.
pub(super) const MARKS: [char; 2] = ['\u{f5a01}', '\u{f5a02}'];

/// The template in plain Jinja; with `marks`, it writes [`MARKS`].
pub(super) fn without_generation(source: &str, marks: bool) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut is_raw = false;
    // The words of the macro around.
    let mut parameters: Option<String> = None;
    while let Some((at, kind)) = next_tag(rest, is_raw) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let tag = &rest[..end_of_tag(rest, kind)];
        let inside = tag.strip_prefix("{%").and_then(|tag| tag.strip_suffix("%}")).unwrap_or_default();
        let word = inside.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let control = |end: bool| {
            let sign = if end { inside.chars().next_back() } else { inside.chars().next() };
            sign.filter(|sign| matches!(sign, '-' | '+')).map(String::from).unwrap_or_default()
        };
        let (left, right) = (control(false), control(true));
        match (kind, word) {
            ('%', word) if is_raw => {
                is_raw = word != "endraw";
                out.push_str(tag);
            }
            ('%', "generation") if marks => {
                out.push_str(&format!("{{%{left} with %}}{}{{% if true {right}%}}", MARKS[0]));
            }
            ('%', "endgeneration") if marks => {
                out.push_str(&format!("{{%{left} endif %}}{}{{% endwith {right}%}}", MARKS[1]));
            }
            ('%', "generation") => out.push_str(&format!("{{%{left} with {right}%}}")),
            ('%', "endgeneration") => out.push_str(&format!("{{%{left} endwith {right}%}}")),
            ('#', _) => out.push_str(tag),
            (_, word) => {
                is_raw = kind == '%' && word == "raw";
                match word.split_whitespace().next() {
                    Some("macro") if kind == '%' => parameters = Some(word.to_string()),
                    Some("endmacro") if kind == '%' => parameters = None,
                    _ => {}
                }
                out.push_str(&rewritten(tag, kind == '%', parameters.as_deref()));
            }
        }
        rest = &rest[tag.len()..];
    }
    out.push_str(rest);
    out
}

/// A tag with its delimiters and signs, and what is between them as the engine computes it.
fn rewritten(tag: &str, is_block: bool, parameters: Option<&str>) -> String {
    let is_sign = |char: Option<char>| matches!(char, Some('-' | '+'));
    let start = 2 + usize::from(is_sign(tag[2..].chars().next()));
    let end = tag.len().saturating_sub(2);
    let end = end - usize::from(end > start && is_sign(tag[..end].chars().next_back()));
    if start >= end || !tag.ends_with('}') {
        return tag.to_string();
    }
    format!("{}{}{}", &tag[..start], rewrite(&tag[start..end], is_block, parameters), &tag[end..])
}

/// Where the next tag begins, and its kind: `%`, `{` or `#`. Within `raw`, only blocks are looked at.
fn next_tag(text: &str, is_raw: bool) -> Option<(usize, char)> {
    let mut from = 0;
    while let Some(at) = text[from..].find('{').map(|at| from + at) {
        match text[at + 1..].chars().next() {
            Some('%') => return Some((at, '%')),
            Some(kind @ ('{' | '#')) if !is_raw => return Some((at, kind)),
            _ => from = at + 1,
        }
    }
    None
}

/// The length of the tag that a text begins with. Delimiters within quotes do not end it.
fn end_of_tag(text: &str, kind: char) -> usize {
    let end = match kind {
        '%' => "%}",
        '{' => "}}",
        _ => "#}",
    };
    if kind == '#' {
        return text.find(end).map_or(text.len(), |at| at + end.len());
    }
    let (mut quote, mut escaped) = (None, false);
    for (at, char) in text.char_indices().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if char == '\\' => escaped = true,
            Some(open) if char == open => quote = None,
            Some(_) => {}
            None if matches!(char, '"' | '\'') => quote = Some(char),
            None if text[at..].starts_with(end) => return at + end.len(),
            None => {}
        }
    }
    text.len()
}
