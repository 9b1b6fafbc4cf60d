//! Splits text into pre-tokens by the patterns of GPT-2, Llama 3 and Qwen 2: what byte-level BPE merges within.
//!
//! The patterns end in `\s+(?!\S)|\s+`: a run of white space leaves its last character to the word after it. That is
//! the only look-around in them. Without it they run on an automaton, several times as fast as on a backtracking
//! engine; the last character is given back afterwards.

use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::{Anchored, Input, PatternID};

/// GPT-2's (Radford et al. 2019, encoder.py).
pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The patterns that are known: what [`Boundary`](super::segment::Boundary) says of safe places holds for these.
const PATTERNS: [&str; 3] = [
    GPT2,
    // Llama 3's, which is also that of OpenAI's cl100k_base but for its order of contractions.
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    // Qwen 2's and 3's.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// llama.cpp's name of a known pattern.
pub(super) fn llama_cpp_name(pattern: &str) -> Option<&'static str> {
    let names = ["gpt-2", "llama-bpe", "qwen2"];
    PATTERNS.iter().zip(names).find(|(known, _)| **known == pattern).map(|(_, name)| name)
}

/// The opposite of [`llama_cpp_name`].
pub(super) fn pattern_of_llama_cpp(name: &str) -> Option<&'static str> {
    PATTERNS.into_iter().find(|pattern| llama_cpp_name(pattern) == Some(name))
}

/// How they all end.
const WHITE_SPACE: &str = r"|\s+(?!\S)|\s+";

/// The pattern of the white space that nothing before it in the list has matched.
const REST: PatternID = PatternID::new_unchecked(1);

/// One of the known patterns, ready to run.
pub(super) struct Splitter(DFA);

impl Splitter {
    /// `None` if the pattern is not one of those known.
    pub(super) fn new(pattern: &str) -> Option<Splitter> {
        let words = PATTERNS.iter().find(|known| **known == pattern)?.strip_suffix(WHITE_SPACE)?;
        Some(Splitter(DFA::new_many(&[words, r"\s+"]).expect("the known patterns are valid")))
    }

    /// Per-thread state of the automaton.
    pub(super) fn cache(&self) -> Cache {
        self.0.create_cache()
    }

    /// The pre-tokens of `text`, whose start must be the start of one and whose end the end of one.
    pub(super) fn split<'t>(&self, cache: &mut Cache, mut text: &'t str, mut each: impl FnMut(&'t str)) {
        while !text.is_empty() {
            let (token, rest) = text.split_at(self.first(cache, text));
            each(token);
            text = rest;
        }
    }

    /// The length of the first pre-token of a text that is not empty.
    fn first(&self, cache: &mut Cache, text: &str) -> usize {
        let input = Input::new(text).anchored(Anchored::Yes);
        let found = self.0.try_search_fwd(cache, &input).expect("the automaton never gives up");
        // Every character is a letter, a number, white space or none of these, and each pattern has a part for all.
        let found = found.expect("the patterns match every text");
        let end = found.offset();
        if found.pattern() == REST && end < text.len() {
            let last = text[..end].chars().next_back().map_or(0, char::len_utf8);
            return if last < end { end - last } else { end };
        }
        end
    }

    /// The start of a pre-token near the end of `text` that further text cannot move; `None` if there is none.
    ///
    /// A search ends at the latest a few characters after the white space that follows its match. So all pre-tokens
    /// before one that is no white space and ends well before the end of the text are certain.
    pub(super) fn last_boundary(&self, cache: &mut Cache, text: &str) -> Option<usize> {
        const CONTRACTION: usize = 8;
        let (mut at, mut last) = (0, None);
        self.split(cache, text, |token| {
            let is_certain = at + token.len() + CONTRACTION < text.len() && !token.trim_start().is_empty();
            if is_certain && at > 0 {
                last = Some(at);
            }
            at += token.len();
        });
        last
    }
}
