//! Rewrites expressions that the engine parses or computes differently from Jinja2.
//!
//! | in a template | for the engine | because |
//! |---|---|---|
//! | `"\/"` | `"\\/"` | Python knows no such escape and keeps both characters |
//! | `+x` | `- -x` | there is no unary plus |
//! | `'%s' % x` | `'%s'\|__printf(x)` | the operator takes numbers alone |
//! | `a ~ b` | `__text(a) ~ __text(b)` | floats and containers are printed as Python prints them |
//! | `a < b`, `a not in b` | `__compare(a, '<', b)` | types without an order or without such items are errors |
//! | `for x in y` | `for x in __iterable((y))` | none is no empty list |
//! | `varargs`, `kwargs`, `self` | `__refuse('varargs')` | there are no such values |
//! | `include x ignore missing` | `include x` | there is nothing to load from |
//!
//! Line breaks stay where they are, so that errors name the template's lines.

use std::cmp::Reverse;
use std::ops::Range;

/// Names that begin or join expressions; what follows one is an operand.
const KEYWORDS: [&str; 8] = ["and", "or", "not", "if", "elif", "else", "in", "recursive"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Name,
    Number,
    Operator,
}

struct Token<'a> {
    kind: Kind,
    at: usize,
    text: &'a str,
    /// How many brackets are around it; a bracket is outside of itself.
    depth: usize,
}

impl Token<'_> {
    fn end(&self) -> usize {
        self.at + self.text.len()
    }

    fn is(&self, operator: &str) -> bool {
        self.kind == Kind::Operator && self.text == operator
    }
}

/// Text in place of some bytes; of those at one place, the one of the lowest rank comes first.
struct Edit {
    range: Range<usize>,
    rank: (u8, Reverse<usize>),
    text: String,
}

/// An expression, or a block's word and its expressions, with edits to come.
struct Rewriter<'a> {
    tokens: Vec<Token<'a>>,
    is_block: bool,
    edits: Vec<Edit>,
}

/// Rewrites the inside of a tag, without its delimiters and signs. `parameters` are those of the enclosing macro, if
/// any.
pub(super) fn rewrite(inside: &str, is_block: bool, parameters: Option<&str>) -> String {
    let mut rewriter = Rewriter { tokens: tokens(inside), is_block, edits: vec![] };
    rewriter.texts();
    rewriter.names(parameters);
    rewriter.operators();
    if is_block {
        rewriter.blocks();
    }
    let mut edits = rewriter.edits;
    edits.sort_by_key(|edit| (edit.range.start, edit.rank));
    let (mut out, mut done) = (String::with_capacity(inside.len()), 0);
    for edit in edits {
        out.push_str(&inside[done..edit.range.start]);
        out.push_str(&edit.text);
        done = edit.range.end;
    }
    out + &inside[done..]
}

impl Rewriter<'_> {
    fn replace(&mut self, index: usize, rank: u8, text: &str) {
        let token = &self.tokens[index];
        self.edits.push(Edit { range: token.at..token.end(), rank: (rank, Reverse(0)), text: text.into() });
    }

    /// Encloses tokens; what is enclosed twice by the wider one outside.
    fn enclose(&mut self, tokens: Range<usize>, open: &str, close: &str) {
        let (start, end) = (self.tokens[tokens.start].at, self.tokens[tokens.end - 1].end());
        self.edits.push(Edit { range: start..start, rank: (2, Reverse(end)), text: open.into() });
        self.edits.push(Edit { range: end..end, rank: (0, Reverse(0)), text: close.into() });
    }

    fn texts(&mut self) {
        for index in 0..self.tokens.len() {
            let token = &self.tokens[index];
            if token.kind == Kind::Text && token.text.contains("\\/") {
                let mut out = String::new();
                let mut chars = token.text.chars().peekable();
                while let Some(char) = chars.next() {
                    out.push(char);
                    match (char, chars.peek()) {
                        ('\\', Some('/')) => out.push('\\'),
                        ('\\', Some(_)) => out.extend(chars.next()),
                        _ => {}
                    }
                }
                self.replace(index, 3, &out);
            }
        }
    }

    fn names(&mut self, parameters: Option<&str>) {
        for index in 0..self.tokens.len() {
            let name = self.tokens[index].text;
            let is_asked_for = match name {
                "varargs" | "kwargs" => parameters.is_some_and(|parameters| !parameters.contains(name)),
                "self" => !self.tokens.get(index + 1).is_some_and(|next| next.is(".")),
                _ => false,
            };
            let is_attribute = index > 0 && self.tokens[index - 1].is(".");
            let is_set = self.tokens.get(index + 1).is_some_and(|next| next.is("="));
            if is_asked_for && !is_attribute && !is_set {
                let call = format!("__refuse('{name}')");
                self.replace(index, 3, &call);
            }
        }
    }

    fn operators(&mut self) {
        for index in 0..self.tokens.len() {
            if self.tokens[index].kind != Kind::Operator {
                continue;
            }
            match self.tokens[index].text {
                "+" if !self.follows_operand(index) => self.replace(index, 3, "- -"),
                "%" => self.printf(index),
                "~" => self.concatenation(index),
                _ => {}
            }
        }
        let mut index = 0;
        while index < self.tokens.len() {
            let Some(operator) = self.comparison(index) else {
                index += 1;
                continue;
            };
            index = operator.end;
            self.comparisons(operator);
        }
    }

    /// Whether an operand ends before a token, so that a sign there has two.
    fn follows_operand(&self, index: usize) -> bool {
        index > 0
            && match self.tokens[index - 1].kind {
                Kind::Text | Kind::Number => true,
                Kind::Name => !self.is_keyword(index - 1),
                Kind::Operator => [")", "]", "}"].contains(&self.tokens[index - 1].text),
            }
    }

    fn is_keyword(&self, index: usize) -> bool {
        let is_word = KEYWORDS.contains(&self.tokens[index].text) || (self.is_block && index == 0);
        self.tokens[index].kind == Kind::Name && is_word && !(index > 0 && self.tokens[index - 1].is("."))
    }

    /// A literal and what it formats, which is a value with its attributes, calls and filters.
    fn printf(&mut self, index: usize) {
        let is_literal = index > 0 && self.tokens[index - 1].kind == Kind::Text;
        let is_factor = index > 1 && ["*", "/", "//", "%", "**"].contains(&self.tokens[index - 2].text);
        let depth = self.tokens[index].depth;
        let mut end = index + 1;
        while let Some(token) = self.tokens.get(end) {
            let is_inner = token.depth > depth;
            let is_part = match token.kind {
                Kind::Operator => ["(", "[", "{", ")", "]", "}", ".", "|"].contains(&token.text),
                Kind::Name => !self.is_keyword(end) && (token.text != "is"),
                _ => true,
            };
            if token.depth < depth || !(is_inner || is_part || end == index + 1) {
                break;
            }
            end += 1;
        }
        let then = self.tokens.get(end).map_or("", |token| token.text);
        if is_literal && !is_factor && end > index + 1 && !["is", "**"].contains(&then) {
            self.replace(index, 1, "|__printf(");
            let end = self.tokens[end - 1].end();
            self.edits.push(Edit { range: end..end, rank: (0, Reverse(0)), text: ")".into() });
        }
    }

    fn concatenation(&mut self, index: usize) {
        let is_end = |at: usize| {
            let token = &self.tokens[at];
            let is_sum = ["+", "-"].contains(&token.text) && self.follows_operand(at);
            self.ends_operand(at) || token.is("~") || is_sum
        };
        let (left, right) = (self.before(index, is_end), self.after(index, is_end));
        // The operand between two of these operators is the right one of the first.
        if left.start == 0 || !self.tokens[left.start - 1].is("~") {
            self.enclose(left, "__text(", ")");
        }
        self.enclose(right, "__text(", ")");
    }

    /// A chain of comparisons, `a < b <= c`, of which this is the first operator.
    fn comparisons(&mut self, first: Range<usize>) {
        let is_end = |at: usize| self.ends_operand(at);
        let left = self.before(first.start, is_end);
        let is_later = [1, 2]
            .into_iter()
            .filter_map(|length| left.start.checked_sub(length))
            .any(|at| self.comparison(at).is_some_and(|operator| operator.end == left.start));
        let (mut operators, mut right) = (vec![first.clone()], self.after(first.end - 1, is_end));
        while let Some(next) = self.comparison(right.end).filter(|_| !right.is_empty()) {
            right = self.after(next.end - 1, is_end);
            operators.push(next);
        }
        // Equality alone is the engine's.
        let is_typed = operators.iter().any(|operator| !["==", "!="].contains(&self.tokens[operator.start].text));
        if left.is_empty() || right.is_empty() || is_later || !is_typed {
            return;
        }
        for operator in operators {
            let words: Vec<&str> = self.tokens[operator.clone()].iter().map(|token| token.text).collect();
            let text = format!(", '{}', ", words.join(" "));
            self.replace(operator.start, 1, &text);
            operator.skip(1).for_each(|rest| self.replace(rest, 1, ""));
        }
        self.enclose(left.start..right.end, "__compare(", ")");
    }

    /// The operator of a comparison that begins at a token.
    fn comparison(&self, at: usize) -> Option<Range<usize>> {
        let token = self.tokens.get(at)?;
        let is_word = |at: usize, word: &str| self.tokens.get(at).is_some_and(|token| token.text == word);
        let length = match token.text {
            "==" | "!=" | "<" | "<=" | ">" | ">=" if token.kind == Kind::Operator => 1,
            "not" if is_word(at + 1, "in") => 2,
            "in" if at > 0 && !is_word(at - 1, "not") && Some(at) != self.in_of_loop() => 1,
            _ => return None,
        };
        (token.kind == Kind::Operator || (self.is_keyword(at) && !self.is_of_test(at))).then(|| at..at + length)
    }

    /// Whether a token is the `not` or `in` of a test: `x is not none`, `x is in y`.
    fn is_of_test(&self, at: usize) -> bool {
        let before = |word: &str| at > 0 && self.tokens[at - 1].text == word;
        match self.tokens[at].text {
            "not" => before("is"),
            "in" => before("is") || (before("not") && self.is_of_test(at - 1)),
            _ => false,
        }
    }

    /// The first `in` of a `for` block.
    fn in_of_loop(&self) -> Option<usize> {
        let is_loop = self.is_block && self.tokens.first().is_some_and(|token| token.text == "for");
        let is_in = |token: &Token| token.depth == 0 && token.kind == Kind::Name && token.text == "in";
        self.tokens.iter().position(is_in).filter(|_| is_loop)
    }

    /// Whether the operands of a comparison end at a token.
    fn ends_operand(&self, at: usize) -> bool {
        let token = &self.tokens[at];
        let ends = [",", "=", ":", "==", "!=", "<", "<=", ">", ">="];
        let is_word = self.is_keyword(at) && !self.is_of_test(at);
        is_word || (token.kind == Kind::Operator && ends.contains(&token.text))
    }

    /// The tokens before an operator, up to one that ends an operand, or a bracket that encloses the operator.
    fn before(&self, index: usize, is_end: impl Fn(usize) -> bool) -> Range<usize> {
        let depth = self.tokens[index].depth;
        let stops = |at: &usize| self.tokens[*at].depth < depth || (self.tokens[*at].depth == depth && is_end(*at));
        (0..index).rev().find(stops).map_or(0, |at| at + 1)..index
    }

    fn after(&self, index: usize, is_end: impl Fn(usize) -> bool) -> Range<usize> {
        let depth = self.tokens[index].depth;
        let stops = |at: &usize| self.tokens[*at].depth < depth || (self.tokens[*at].depth == depth && is_end(*at));
        index + 1..(index + 1..self.tokens.len()).find(stops).unwrap_or(self.tokens.len())
    }

    fn blocks(&mut self) {
        let word = |index: usize, word: &str| {
            self.tokens.get(index).is_some_and(|token| token.text == word && token.kind == Kind::Name)
        };
        let outer = |index: &usize| self.tokens[*index].depth == 0;
        let all = 0..self.tokens.len();
        if word(0, "for") {
            let Some(begin) = self.in_of_loop() else { return };
            let ends = |index: &usize| word(*index, "if") || word(*index, "recursive");
            let end = (begin + 1..all.end).filter(outer).find(ends).unwrap_or(all.end);
            if end > begin + 1 {
                self.enclose(begin + 1..end, "__iterable((", "))");
            }
        } else if word(0, "include")
            && let Some(index) = all.clone().find(|index| word(*index, "ignore") && word(index + 1, "missing"))
        {
            self.replace(index, 1, "");
            self.replace(index + 1, 1, "");
        }
    }
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut all, mut at, mut depth) = (vec![], 0_usize, 0_usize);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let is_word = |char: char| char.is_alphanumeric() || char == '_';
        let while_word = |from: &str| from.find(|char| !is_word(char)).unwrap_or(from.len());
        let (kind, length) = match first {
            char if char.is_whitespace() => {
                at += first.len_utf8();
                continue;
            }
            '"' | '\'' => (Kind::Text, length_of_text(rest, first)),
            char if char.is_ascii_digit() => (Kind::Number, length_of_number(rest)),
            char if is_word(char) => (Kind::Name, while_word(rest)),
            _ if ["==", "!=", "<=", ">=", "//", "**"].iter().any(|two| rest.starts_with(two)) => (Kind::Operator, 2),
            char => (Kind::Operator, char.len_utf8()),
        };
        if kind == Kind::Operator && [')', ']', '}'].contains(&first) {
            depth = depth.saturating_sub(1);
        }
        all.push(Token { kind, at, text: &rest[..length], depth });
        if kind == Kind::Operator && ['(', '[', '{'].contains(&first) {
            depth += 1;
        }
        at += length;
    }
    all
}

fn length_of_text(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, char) in text.char_indices().skip(1) {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            char if char == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Of digits with a point or an exponent, whose sign belongs to them.
fn length_of_number(text: &str) -> usize {
    let mut before = ' ';
    for (at, char) in text.char_indices() {
        let is_sign = matches!(char, '+' | '-') && matches!(before, 'e' | 'E') && !text.starts_with("0x");
        let is_part = char.is_ascii_alphanumeric() || char == '_' || is_sign;
        let is_point = char == '.' && text[at + 1..].starts_with(|next: char| next.is_ascii_digit());
        if !(is_part || is_point) {
            return at;
        }
        before = char;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_written_otherwise() {
        let expression = |text: &str| rewrite(text, false, None);
        for same in [
            " a + b - -1 ",
            " 'a' + \"~\" ",
            " x[1:] | join(', ') ",
            " 5 % 3 ",
            " 1 == 2 != 3 ",
            " x is not in y ",
            " 1e-5 ",
        ] {
            assert_eq!(expression(same), same);
        }
        for (text, expected) in [
            ("'\\/' + '\\\\/'", "'\\\\/' + '\\\\/'"),
            ("+x + +1", "- -x + - -1"),
            ("'%s' % x.y|upper + 'a'", "'%s' |__printf( x.y|upper) + 'a'"),
            ("a ~ f(b ~ c) ~ 1 + d", "__text(a) ~ __text(f(__text(b) ~ __text(c))) ~ __text(1) + d"),
            ("x if a|length<b-1 else c", "x if __compare(a|length, '<', b-1) else c"),
            ("a ~ b < c", "__compare(__text(a) ~ __text(b) , '<',  c)"),
            ("+a ~ b", "__text(- -a) ~ __text(b)"),
            ("not a in b.c|list or d", "not __compare(a , 'in',  b.c|list) or d"),
            ("1 == x not  in y < 3", "__compare(1 , '==',  x , 'not in',    y , '<',  3)"),
            ("x is not none == a in b", "__compare(x is not none , '==',  a , 'in',  b)"),
        ] {
            assert_eq!(expression(text), expected, "{text}");
        }
        let block = |text: &str| rewrite(text, true, Some("f(a, kwargs)"));
        assert_eq!(block(" for a, b in c if a < b "), " for a, b in __iterable((c)) if __compare(a , '<',  b) ");
        assert_eq!(block(" for a in kwargs.items() recursive "), " for a in __iterable((kwargs.items())) recursive ");
        assert_eq!(block(" for a in b if a in c "), " for a in __iterable((b)) if __compare(a , 'in',  c) ");
        assert_eq!(block(" if varargs "), " if __refuse('varargs') ");
        assert_eq!(block(" include 'x' ignore missing "), " include 'x'   ");
    }
}
