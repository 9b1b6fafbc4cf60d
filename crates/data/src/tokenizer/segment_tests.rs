//! Texts that are cut into segments give the ids that the library gives for the whole.

use super::segment::{Boundary, SEGMENT_BYTES};
use super::tests::{TRICKY, by_the_library, load, sample};
use super::*;
use serde_json::json;

const LLAMA: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// White space and punctuation of every kind, side by side.
const SEAMS: &str =
    "a  b\n\nc.\n\n  d'S e'll\u{a0}\u{a0}f \n g\r\n\r\nh!?\n\ti 12345 6 ½²\u{3000}x\u{301}\n\u{301}y <|endoftext|>z";

/// Byte-level BPE trained on the sample, with another pattern.
fn byte_level(pattern: Option<&str>, normalizer: Value) -> Tokenizer {
    let corpus = Corpus::of_texts("test", &sample(), "", None).unwrap();
    let mut document: Value = serde_json::from_value(recipe::train_bpe(&corpus, 600).unwrap()).unwrap();
    document["normalizer"] = normalizer;
    document["added_tokens"] = json!([{
        "id": 600, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    }]);
    if let Some(pattern) = pattern {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        document["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
    }
    load(&document).unwrap()
}

/// SentencePiece's kind of BPE: every character of the text, some pairs, and bytes for the rest.
fn spaces(text: &str, prepend: &str, split: bool) -> Tokenizer {
    let mut tokens: Vec<String> = vec!["<unk>".into()];
    tokens.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    let chars: std::collections::BTreeSet<char> =
        text.chars().filter(|c| *c != 'q' && *c != ' ').chain(['▁']).collect();
    tokens.extend(chars.into_iter().map(String::from));
    let merges = ["▁ t", "h e", "▁t he", "▁ ▁", "a n", "▁▁ ▁▁", "an d"];
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    tokens.dedup();
    let vocab: serde_json::Map<String, Value> = tokens.into_iter().zip((0..).map(Value::from)).collect();
    load(&json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend, "split": split},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend, "split": split},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "byte_fallback": true,
            "fuse_unk": true},
    }))
    .unwrap()
}

/// Texts that are several segments long, with seams of every kind near each cut.
fn texts() -> Vec<String> {
    let filler = sample();
    let seams: String = (0..60).flat_map(|i| [&filler[..20_011 + 37 * i], SEAMS, TRICKY]).collect();
    let white = format!("{}{}end", &filler[..100], " \n".repeat(SEGMENT_BYTES));
    vec![TRICKY.to_string(), seams, white, TRICKY.repeat(4 * SEGMENT_BYTES / TRICKY.len())]
}

fn agrees(tokenizer: &Tokenizer, text: &str) {
    let (ours, whole) = (tokenizer.encode(text).unwrap(), by_the_library(tokenizer, text));
    let at = ours.iter().zip(&whole).position(|(a, b)| a != b).unwrap_or(ours.len().min(whole.len()));
    assert!(
        ours == whole,
        "{} and {} ids, from {at} on {:?} for {:?}",
        ours.len(),
        whole.len(),
        &ours[at..(at + 5).min(ours.len())],
        &whole[at..(at + 5).min(whole.len())]
    );
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn byte_level_segments_agree_with_the_library() {
    for (pattern, normalizer) in [(None, Value::Null), (Some(LLAMA), Value::Null), (Some(QWEN), json!({"type": "NFC"}))]
    {
        let tokenizer = byte_level(pattern, normalizer);
        assert!(matches!(tokenizer.kind, Kind::ByteLevel { .. }), "{pattern:?} is not recognised");
        texts().iter().for_each(|text| agrees(&tokenizer, text));
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn segments_of_spaces_agree_with_the_library() {
    for (prepend, split) in [("always", true), ("first", true), ("never", true), ("first", false), ("never", false)] {
        let texts = texts();
        let tokenizer = spaces(&texts[1], prepend, split);
        assert!(matches!(tokenizer.kind, Kind::Spaces { .. }), "{prepend} {split} is not recognised");
        agrees(&tokenizer, " begins with a space, and has ▁ in it");
        // Without pre-tokens the library merges the whole text at once, which takes long.
        texts.iter().take(if split { 4 } else { 2 }).for_each(|text| agrees(&tokenizer, text));
    }
}

#[test]
fn a_vocabulary_that_merges_across_spaces_is_left_whole() {
    let mut document = serde_json::to_value(&spaces("the cat and", "first", false).inner).unwrap();
    document["model"]["vocab"]["e▁"] = 900.into();
    let tokenizer = load(&document).unwrap();
    assert!(matches!(tokenizer.boundary, Boundary::Nowhere));
}

#[test]
fn unknown_patterns_are_left_whole() {
    let tokenizer = byte_level(Some(r"\w+|\W+"), Value::Null);
    assert!(matches!((&tokenizer.kind, &tokenizer.boundary), (Kind::Other, Boundary::Nowhere)));
    agrees(&tokenizer, &texts()[1]);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn text_without_spaces_is_cut_too() {
    let tokenizer = byte_level(Some(LLAMA), Value::Null);
    let text: String = "日本語の文章、句点なし。123".repeat(350_000);
    let mut segments = vec![];
    let mut segmenter = tokenizer.segmenter();
    for piece in text.as_bytes().chunks(900_000 / 36 * 36) {
        let piece = std::str::from_utf8(piece).unwrap_or_else(|_| panic!("pieces end with a character"));
        segmenter
            .push(piece, true, &mut |segment| {
                segments.push(segment);
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(segmenter.forced, 0);
    assert!(!segments.is_empty(), "nothing was cut");
    let joined: Vec<u32> = segments.iter().flat_map(|s| tokenizer.encode_segment(&s.text, s.offset).unwrap()).collect();
    let start: String = segments.iter().map(|s| s.text.as_str()).collect();
    assert!(text.starts_with(&start));
    // A few letters after the last cut, so that the library sees that the last token ends there.
    assert_eq!(joined, by_the_library(&tokenizer, &start));
}

#[test]
fn a_word_beyond_all_measure_is_cut_and_counted() {
    let tokenizer = byte_level(None, Value::Null);
    let mut segmenter = tokenizer.segmenter();
    let mut bytes = 0;
    for _ in 0..20 {
        segmenter
            .push(&"a".repeat(1 << 20), true, &mut |segment| {
                assert_eq!(segment.offset, bytes);
                bytes += segment.text.len() as u64;
                Ok(())
            })
            .unwrap();
    }
    assert!(segmenter.forced >= 2 && bytes > 8 << 20, "{} cuts, {bytes} bytes", segmenter.forced);
}

#[test]
fn texts_are_cut_only_where_no_pre_token_runs_across() {
    let tokenizer = byte_level(Some(LLAMA), Value::Null);
    for (text, limit, expected) in [
        ("word  end", 6, Some(4)),
        ("a\n\nb", 3, None),
        ("a\nb", 2, Some(2)),
        ("a \n b", 4, Some(1)),
        ("ab c", 1, None),
    ] {
        assert_eq!(tokenizer.boundary.cut(text, limit, None), expected, "{text:?} before {limit}");
    }
}

/// As `spaces`, in the way of older Llamas: a normalizer puts the space before every text, also after an added token.
fn prepending(text: &str) -> Tokenizer {
    let mut document = serde_json::to_value(&spaces(text, "first", false).inner).unwrap();
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    document["normalizer"] = json!({"type": "Sequence", "normalizers": [prepend, replace]});
    document["pre_tokenizer"] = Value::Null;
    let next = document["model"]["vocab"].as_object().unwrap().len();
    document["added_tokens"] = json!([recipe::special_token(next, "</s>")]);
    load(&document).unwrap()
}

/// The runs of a document that is handed over in these pieces, as texts of tokens: "+" before what is predicted.
fn runs(tokenizer: &Tokenizer, joins: bool, pieces: &[(&str, bool)]) -> (Vec<u32>, Vec<String>) {
    let mut segmenter = tokenizer.segmenter();
    segmenter.joins = joins;
    let (mut all, mut runs) = (vec![], vec![]);
    let mut take = |segment: Segment| {
        let (ids, found) = tokenizer.encode_runs(&segment)?;
        let texts: String = found.iter().map(|run| &segment.text[run.text.clone()]).collect();
        assert_eq!(texts, segment.text);
        runs.extend(found.iter().filter(|run| !run.ids.is_empty()).map(|run| {
            let tokens = ids[run.ids.clone()].iter().map(|id| tokenizer.inner.id_to_token(*id).unwrap());
            format!("{}{}", if run.predicted { "+" } else { "-" }, tokens.collect::<Vec<_>>().join("|"))
        }));
        all.extend(ids);
        Ok(())
    };
    for (piece, predicted) in pieces {
        segmenter.push(piece, *predicted, &mut take).unwrap();
    }
    segmenter.end_document(&mut take).unwrap();
    (all, runs)
}

#[test]
fn a_conversation_has_the_tokens_of_its_whole_text() {
    let turns =
        [("user: the and", false), (" an the</s>", true), ("\nuser: a", false), ("the</s>", true), ("\n", false)];
    let whole: String = turns.map(|(text, _)| text).concat();
    let mut byte_level = byte_level(Some(QWEN), json!({"type": "NFC"}));
    byte_level.name = "qwen".into();
    for tokenizer in [prepending(&whole), spaces(&whole, "first", false), spaces(&whole, "always", true), byte_level] {
        let (ids, runs) = runs(&tokenizer, true, &turns);
        assert_eq!(ids, by_the_library(&tokenizer, &whole), "{}", tokenizer.name());
        assert_eq!(runs.iter().map(|run| &run[..1]).collect::<String>(), "-+-+-", "{runs:?}");
    }
    // The space before an answer is the answer's, and one is put only where the normalizer puts it in the whole text.
    let (_, runs) = runs(&prepending(&whole), true, &turns);
    assert_eq!(runs, ["-▁|u|s|e|r|:|▁the|▁|and", "+▁|an|▁the|</s>", "-▁|\n|u|s|e|r|:|▁|a", "+t|he|</s>", "-▁|\n"]);
}

#[test]
fn a_token_across_the_end_of_a_prompt_is_predicted() {
    let tokenizer = prepending("the and x:");
    assert!(tokenizer.adds_space());
    let (ids, runs) = runs(&tokenizer, tokenizer.adds_space(), &[("x: t", false), ("he a", true)]);
    assert_eq!((ids, runs), (by_the_library(&tokenizer, "x: the a"), vec!["-▁|x|:".to_string(), "+▁the|▁|a".into()]));
    // One that puts no space has a prompt and a completion by themselves, as they are when it is continued.
    let tokenizer = spaces("the and x:", "never", false);
    assert!(!tokenizer.adds_space());
    let (_, runs) = self::runs(&tokenizer, false, &[("x: t", false), ("he a", true)]);
    assert_eq!(runs, ["-x|:|▁t", "+he|▁|a"]);
}

#[test]
fn a_long_conversation_is_cut_within_its_stretches() {
    let turn = "the cat and the dog ".repeat(3000);
    let tokenizer = byte_level(None, Value::Null);
    let turns: Vec<(&str, bool)> = (0..40).map(|i| (turn.as_str(), i % 2 == 1)).collect();
    let (ids, runs) = runs(&tokenizer, true, &turns);
    assert_eq!(ids, by_the_library(&tokenizer, &turn.repeat(40)));
    let predicted: usize = runs.iter().filter(|run| run.starts_with('+')).map(|run| run.matches("|").count() + 1).sum();
    assert!(predicted.abs_diff(ids.len() / 2) <= 20, "{predicted} of {}", ids.len());
}

#[test]
fn what_follows_a_text_has_the_tokens_of_the_whole() {
    let tokenizer = prepending("the and x:\n");
    let (before, text) = ("x: the</s>", "\nx: and");
    let whole = by_the_library(&tokenizer, &format!("{before}{text}"));
    let after = tokenizer.encode_after(before, text).unwrap().unwrap();
    assert_eq!([by_the_library(&tokenizer, before), after].concat(), whole);
    assert_eq!(tokenizer.encode_after("x: t", "he").unwrap(), None);
    assert_eq!(tokenizer.encode_after(before, "").unwrap(), Some(vec![]));
    let plain = spaces("the and x:", "never", false);
    assert_eq!(plain.encode_after("x: t", "he").unwrap(), Some(by_the_library(&plain, "he")));
}

#[test]
fn a_normalized_added_token_is_found_in_normalized_text() {
    let mut document = serde_json::to_value(&byte_level(Some(QWEN), json!({"type": "NFC"})).inner).unwrap();
    let mut token = recipe::special_token(601, "caf\u{e9}");
    (token["normalized"], token["special"]) = (true.into(), false.into());
    document["added_tokens"].as_array_mut().unwrap().push(token);
    let tokenizer = load(&document).unwrap();
    assert!(matches!(tokenizer.kind, Kind::ByteLevel { normalizes: true, .. }));
    for text in ["a caf\u{e9} b", "a cafe\u{301} b", "cafe\u{301}"] {
        agrees(&tokenizer, text);
        assert!(tokenizer.encode(text).unwrap().contains(&601), "{text}");
    }
}
