//! Where text comes in: files that are not there, sizes that no memory holds, ids beyond the vocabulary.

use super::{Defined, HUGE, LARGE, Refused, Row};
use rustyflow::Result;
use rustyflow::data::{
    Answer, ChatSpec, ChatTemplate, Continued, Corpus, CorpusSpec, DataSpec, DeclaredIds, Label, LlamaCppVocabulary,
    Loader, Order, Piece, Position, Split, TextConventions, Tokenizer, TokenizerSpec, Tokens, encode_beginning,
    encode_split, eval_windows, holds_prepared, read_questions, read_text,
};
use serde_json::json;
use std::path::Path;

pub const NOWHERE: &str = "/there/is/no/such/folder";
const LAST: Position = Position { epoch: u64::MAX, window: 0 };
const BEYOND: Position = Position { epoch: 0, window: u64::MAX };

fn tokens(count: u32) -> Tokens {
    Tokens::from((0..count).collect::<Vec<u32>>())
}

fn loader(batch: usize, block: usize, start: Position) -> Result<Loader> {
    Loader::new(tokens(20), Order::Shuffled, batch, block, 1, start)
}

fn corpus() -> Result<Corpus> {
    Corpus::of_texts("text", "a text", "another", None)
}

pub fn tokenizer() -> Result<Tokenizer> {
    Tokenizer::build(&TokenizerSpec::Char, 0, &corpus()?, Path::new(NOWHERE))
}

fn spec(corpus: &str, validation_fraction: f64) -> CorpusSpec<'_> {
    let (files, data_dir) = (&[], Path::new(NOWHERE));
    CorpusSpec { corpus, files, validation_fraction, data_dir, cache: None, chat: ChatSpec::default() }
}

fn data_spec() -> DataSpec<'static> {
    DataSpec { corpus: spec("sample", 0.1), tokenizer: "no such kind", vocab_size: HUGE, packing: None }
}

fn template() -> Result<ChatTemplate> {
    ChatTemplate::new("test", "{% for m in messages %}{{ m.content }}{% endfor %}", Default::default())
}

pub fn rows() -> Vec<Row> {
    [loading(), texts(), tokenizers(), chats()].concat()
}

fn loading() -> Vec<Row> {
    vec![
        ("Continued::new", Refused, |_| Continued::new(tokens(20), 0, 4).map(drop)),
        ("Continued::new", Refused, |_| Continued::new(tokens(20), 2, 0).map(drop)),
        ("Continued::new", Refused, |_| Continued::new(tokens(1), 2, 4).map(drop)),
        ("Continued::new", Refused, |_| Continued::new(tokens(20), HUGE, HUGE).map(drop)),
        ("Continued::row", Defined, |_| {
            let text = Continued::new(tokens(20), 3, 4)?;
            for place in [text.rows(), HUGE - 1, HUGE] {
                assert_eq!(text.row(place).ids.len(), 4);
            }
            Ok(())
        }),
        ("Loader::new", Refused, |_| loader(0, 4, Position::default()).map(drop)),
        ("Loader::new", Refused, |_| loader(2, 0, Position::default()).map(drop)),
        ("Loader::new", Refused, |_| loader(2, HUGE, Position::default()).map(drop)),
        ("Loader::new", Refused, |_| loader(HUGE, 4, Position::default()).map(drop)),
        ("Loader::new", Refused, |_| loader(LARGE, 4, Position::default()).map(drop)),
        ("Loader::new", Refused, |_| loader(2, 4, BEYOND).map(drop)),
        ("Loader::new", Refused, |_| Loader::new(tokens(0), Order::Shuffled, 1, 1, 1, Position::default()).map(drop)),
        // After the last epoch comes the first.
        ("Loader::new", Defined, |_| {
            let mut loader = loader(9, 4, LAST)?;
            loader.next_batch();
            loader.next_batch();
            Ok(())
        }),
        ("Loader::windows_in_epoch", Defined, |_| {
            loader(2, 4, Position::default())?.windows_in_epoch(u64::MAX);
            Ok(())
        }),
        ("Loader::epochs_at", Defined, |_| {
            loader(2, 4, Position::default())?.epochs_at(BEYOND);
            Ok(())
        }),
        ("eval_windows", Refused, |_| eval_windows(&tokens(20), 4, 0).map(drop)),
        ("eval_windows", Refused, |_| eval_windows(&tokens(20), 4, 5).map(drop)),
        ("eval_windows", Refused, |_| eval_windows(&tokens(20), HUGE, HUGE).map(drop)),
        ("eval_windows", Refused, |_| eval_windows(&tokens(20), LARGE, 1).map(drop)),
        ("eval_windows", Refused, |_| eval_windows(&tokens(1), 4, 4).map(drop)),
        ("Answer::from", Defined, |_| {
            let answer = Answer { places: 1..HUGE, label: Label::Chosen };
            assert_eq!(answer.from(HUGE).places, HUGE..HUGE);
            Ok(())
        }),
        ("Tokens::first_prompt", Defined, |_| {
            assert_eq!(tokens(20).first_prompt(HUGE), None);
            Ok(())
        }),
        ("Tokens::truncations", Defined, |_| {
            assert_eq!(tokens(20).truncations(0), (0, 0));
            Ok(())
        }),
        ("holds_prepared", Defined, |_| {
            assert!(!holds_prepared(Path::new(NOWHERE)));
            Ok(())
        }),
        ("Tokens::each_part", Defined, |_| {
            tokens(0).each_part(|_| ());
            Ok(())
        }),
    ]
}

fn texts() -> Vec<Row> {
    vec![
        ("read_text", Refused, |_| read_text(Path::new(NOWHERE)).map(drop)),
        ("read_text", Refused, |_| read_text(Path::new("")).map(drop)),
        ("read_questions", Refused, |_| read_questions(Path::new(NOWHERE)).map(drop)),
        ("read_questions", Refused, |_| read_questions(Path::new("Cargo.toml")).map(drop)),
        ("Corpus::open", Refused, |_| Corpus::open(&spec(NOWHERE, 0.1), &mut |_| ()).map(drop)),
        ("Corpus::open", Refused, |_| Corpus::open(&spec("README.md", f64::NAN), &mut |_| ()).map(drop)),
        ("Corpus::open", Refused, |_| Corpus::open(&spec("README.md", 1.5), &mut |_| ()).map(drop)),
        ("Corpus::open", Refused, |_| Corpus::open(&spec("README.md", -0.5), &mut |_| ()).map(drop)),
        ("Corpus::of_texts", Refused, |_| Corpus::of_texts("", "", "", None).map(drop)),
        ("Corpus::has", Defined, |_| {
            corpus()?.has(Split::Test);
            Ok(())
        }),
        ("Corpus::read", Refused, |_| {
            corpus()?.read(Split::Train, &mut |_: Piece| Err(rustyflow::Error::Invalid("enough".into())))
        }),
        ("DataSpec::prepare", Refused, |_| {
            data_spec().prepare(&corpus()?, None, &mut |_| Ok(()), &mut |_| ()).map(drop)
        }),
        ("DataSpec::write_to", Refused, |_| {
            data_spec().write_to(&corpus()?, Path::new("Cargo.toml"), &mut |_| ()).map(drop)
        }),
        ("encode_beginning", Defined, |_| encode_beginning(&corpus()?, Split::Train, &tokenizer()?, HUGE).map(drop)),
        ("encode_split", Defined, |_| encode_split(&corpus()?, Split::Train, &tokenizer()?, None).map(drop)),
    ]
}

fn tokenizers() -> Vec<Row> {
    vec![
        ("TokenizerSpec::parse", Refused, |_| TokenizerSpec::parse("no such kind").map(drop)),
        ("TokenizerSpec::parse", Refused, |_| TokenizerSpec::parse("").map(drop)),
        ("Tokenizer::build", Refused, |_| {
            Tokenizer::build(&TokenizerSpec::Bpe, 0, &corpus()?, Path::new(NOWHERE)).map(drop)
        }),
        ("Tokenizer::build", Refused, |_| {
            Tokenizer::build(&TokenizerSpec::Bpe, HUGE, &corpus()?, Path::new(NOWHERE)).map(drop)
        }),
        ("Tokenizer::from_folder", Refused, |_| Tokenizer::from_folder(Path::new(NOWHERE)).map(drop)),
        ("Tokenizer::from_file", Refused, |_| Tokenizer::from_file(Path::new("Cargo.toml")).map(drop)),
        ("Tokenizer::decode", Refused, |_| tokenizer()?.decode(&[u32::MAX]).map(drop)),
        ("Tokenizer::token_bytes", Refused, |_| tokenizer()?.token_bytes(u32::MAX).map(drop)),
        ("Tokenizer::encode", Refused, |_| tokenizer()?.encode("\u{1f980}").map(drop)),
        ("Tokenizer::coverage", Refused, |_| {
            let word = Tokenizer::build(&TokenizerSpec::Word, 0, &corpus()?, Path::new(NOWHERE))?;
            word.coverage("a", &[u32::MAX]).map(drop)
        }),
        ("Tokenizer::difference", Defined, |_| {
            let bpe = Tokenizer::build(&TokenizerSpec::Bpe, 260, &corpus()?, Path::new(NOWHERE))?;
            assert!(tokenizer()?.difference(&bpe).is_some() && bpe.difference(&tokenizer()?).is_some());
            Ok(())
        }),
        ("Tokenizer::shared_ids", Defined, |_| {
            let bpe = Tokenizer::build(&TokenizerSpec::Bpe, 260, &corpus()?, Path::new(NOWHERE))?;
            assert_eq!(tokenizer()?.shared_ids(&bpe).len(), bpe.vocab_size());
            Ok(())
        }),
        ("Tokenizer::with_name", Defined, |_| {
            assert_eq!(tokenizer()?.with_name("").name(), "");
            Ok(())
        }),
        ("LlamaCppVocabulary::token", Defined, |_| {
            assert_eq!(LlamaCppVocabulary::default().token(Some(u32::MAX)), None);
            Ok(())
        }),
        ("LlamaCppVocabulary::ends", Defined, |_| {
            assert!(LlamaCppVocabulary::default().ends(Some(u32::MAX)).is_empty());
            Ok(())
        }),
        ("Tokenizer::for_llama_cpp", Refused, |_| {
            let bpe = Tokenizer::build(&TokenizerSpec::Bpe, 260, &corpus()?, Path::new(NOWHERE))?;
            bpe.for_llama_cpp(HUGE).map(drop)
        }),
        ("Tokenizer::pretrained_files", Defined, |_| tokenizer()?.pretrained_files(HUGE, "no such type").map(drop)),
        ("Tokenizer::special_token", Defined, |_| {
            assert_eq!(tokenizer()?.special_token("no such name"), None);
            Ok(())
        }),
        ("Tokenizer::is_special", Defined, |_| {
            assert!(!tokenizer()?.is_special(u32::MAX));
            Ok(())
        }),
        ("Tokenizer::encode_after", Refused, |_| tokenizer()?.encode_after("a", "\u{1f980}").map(drop)),
        ("DeclaredIds::read", Defined, |_| DeclaredIds::read(&[Path::new(NOWHERE)]).map(drop)),
        ("TextConventions::new", Defined, |_| {
            assert!(TextConventions::new(tokenizer()?, None, DeclaredIds::default()).ends().is_empty());
            Ok(())
        }),
        ("TextConventions::load", Refused, |_| TextConventions::load(Path::new(NOWHERE), Path::new(NOWHERE)).map(drop)),
        ("TextStream::push", Refused, |_| tokenizer()?.stream().push(u32::MAX).map(drop)),
    ]
}

fn chats() -> Vec<Row> {
    vec![
        ("ChatTemplate::new", Refused, |_| ChatTemplate::new("bad", "{% if %}", Default::default()).map(drop)),
        ("ChatTemplate::find", Refused, |_| {
            ChatTemplate::find(&ChatSpec { template: NOWHERE, ..ChatSpec::default() }).map(drop)
        }),
        ("ChatTemplate::render", Refused, |_| {
            let fails = ChatTemplate::new("raises", "{{ raise_exception('no') }}", Default::default())?;
            fails.render(&[json!(7)], None, true).map(drop)
        }),
        ("ChatTemplate::turns", Refused, |_| {
            template()?.turns(&[json!(null), json!("text"), json!([])], None).map(drop)
        }),
        ("TextConventions::ending", Refused, |_| {
            let fails = ChatTemplate::new("raises", "{{ raise_exception('no') }}", Default::default())?;
            TextConventions::new(tokenizer()?, None, DeclaredIds::default()).ending(&fails, &[], vec![]).map(drop)
        }),
        ("ChatTemplate::end_of_answer", Defined, |_| {
            let _ = template()?.end_of_answer(&[json!(null), json!(7)]);
            Ok(())
        }),
    ]
}
